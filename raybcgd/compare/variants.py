"""The variants of a comparison: which runs there are, with their labels and configs."""

import difflib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import NoneType
from typing import Any

from raybcgd.algorithms.contract import title
from raybcgd.algorithms.settings import ALGORITHMS, AlgorithmConfig
from raybcgd.compare.settings import CompareConfig, Variant
from raybcgd.config import Config
from raybcgd.config.explain import short
from raybcgd.config.files import MISSING, ONE_OF, overridden, tables_of, value_at, vary
from raybcgd.errors import ConfigError
from raybcgd.storage import slug

log = logging.getLogger(__name__)

Method = str | type[AlgorithmConfig] | AlgorithmConfig
"""A variant's label, or a method: its name, class or instance."""


def variant_configs(
    config: Config, algorithms: Iterable[Method] | None = None, option: str = "algorithms"
) -> dict[str, Config]:
    """Return the config of each run by its label. `algorithms` selects variants by label or method.

    A method selects every variant that uses it. A method without a variant uses the settings of `[algorithm]` that
    apply to it. An instance keeps its own settings. In errors, `option` is the name of `algorithms` for
    the caller: an argument of Python, or an option of a command.
    """
    example = 'pass a list, such as ["fedavg", "fedbcgd"]'
    if isinstance(algorithms, (str, AlgorithmConfig)) or not isinstance(algorithms, (Iterable, NoneType)):
        raise ConfigError(f"{option} is {short(algorithms)}; {example}")
    variants, base = (config.compare or CompareConfig()).variants, config.with_compare_target()
    if algorithms is not None:
        base_method = type(config.algorithm)
        variants = tuple(v for method in algorithms for v in _selected(method, variants, base_method, option))
        if not variants:
            raise ConfigError(f"{option} is empty; {example}, or leave it out")
        for variant in (variant for k, variant in enumerate(variants) if variant in variants[:k]):
            name = variant.label or ALGORITHMS.name_of(variant.algorithm.get("name", base_method))
            raise ConfigError(f'{option} selects "{name}" twice; name it once')
    if not variants:
        raise ConfigError(f"compare.variants is empty; add at least one, or name methods with {option}")
    varied = []
    for variant in variants:
        method = variant.algorithm.get("name", type(config.algorithm))
        with naming_variant(variant.label or ALGORITHMS.name_of(method)):
            varied.append(vary(base, variant))
    labels = _labels([variant.label for variant in variants], [changed.algorithm for changed in varied])
    return dict(zip(labels, varied, strict=True))


def one_variant(config: Config, variant: str, option: str) -> dict[str, Config]:
    """Return the config of one variant by its label. It has no variants: the others would change other settings."""
    found = variant_configs(config, [variant], option)
    if len(found) > 1:
        raise ConfigError(f"{option} {variant} matches {len(found)} variants; use one of {', '.join(found)}")
    return found


def replaced_by_variants(config: Config, key: str) -> bool:
    """Return whether a variant of the config sets a setting such as "algorithm.lr" itself."""
    table, _, name = key.removeprefix("data.").rpartition(".")
    variants = [] if config.compare is None else [tables_of(variant) for variant in config.compare.variants]
    return any(name in (variant.get(table, {}) if table else variant) for variant in variants)


def seeds_of(config: Config) -> tuple[int, ...]:
    """Return the seeds with which every variant runs."""
    return (config.compare or CompareConfig()).seeds or (config.seed,)


def check_overrides(config: Config, overrides: Iterable[str], configs: Mapping[str, Config]) -> None:
    """Raise an error if a `--set` has no effect on any variant. If it has none on some of them, log a note.

    `config` is the config with the overrides, and `configs` are those of the variants by label.
    """
    compared = config.compare or CompareConfig()
    for key, text in overridden(overrides).items():
        wanted = value_at(config, key)
        if key == "seed" and compared.seeds and wanted not in compared.seeds:
            raise ConfigError(f"--set {text} has no effect: compare.seeds replaces it; set that, or use --seeds")
        if key == "metrics.target" and compared.target not in (None, wanted):
            raise ConfigError(f"--set {text} has no effect: compare.target replaces it; set that")
        found = {label: value_at(one, key) for label, one in configs.items()}
        without = [label for label, value in found.items() if value is MISSING]
        replaced = [label for label, value in found.items() if value is not MISSING and value != wanted]
        if not (without or replaced) or key.startswith("compare."):
            continue
        name = key.rpartition(".")[2]
        names = " or ".join(next((group for group in ONE_OF.values() if name in group), (name,)))
        if len(replaced) == len(configs):
            raise ConfigError(
                f"--set {text} has no effect: every variant sets {names}; set it in compare.variants, or remove it "
                "from them"
            )
        if len(without) + len(replaced) == len(configs):
            sets = f"{', '.join(replaced)} set {names} in compare.variants, and " if replaced else ""
            others = "the others have" if replaced else "the methods that run have"
            raise ConfigError(f"--set {text} has no effect: {sets}{others} no {name}; remove it")
        for labels, why in ((replaced, f"compare.variants sets {names}"), (without, f"there is no {name}")):
            if labels:
                log.warning("note: --set %s has no effect on %s, where %s", text, ", ".join(labels), why)


def _selected(
    method: Method, variants: tuple[Variant, ...], base: type[AlgorithmConfig], option: str
) -> tuple[Variant, ...]:
    """Return the variants that match a label or a method. If there are none, return a new variant of the method.

    `base` is the method of variants that name none.
    """
    if isinstance(method, AlgorithmConfig):
        settings = {name: getattr(method, name) for name in type(method).model_fields}
        return (Variant(algorithm={"name": type(method), **settings}),)
    name = method.strip() if isinstance(method, str) else ALGORITHMS.name_of(method)
    used = [variant.algorithm.get("name", base) for variant in variants]
    labels = [variant.label or title(ALGORITHMS.resolve(own)) for variant, own in zip(variants, used, strict=True)]
    references = [ALGORITHMS.name_of(own) for own in used]
    given = list(zip(variants, labels, references, strict=True))
    if found := tuple(variant for variant, *names in given if name in names):
        return found
    if not isinstance(method, str) or name in ALGORITHMS:
        return (Variant(algorithm={"name": name if isinstance(method, str) else method}),)
    if ALGORITHMS.is_foreign(name):
        with _naming(f"{option} {name}"):
            ALGORITHMS.resolve(name)
        return (Variant(algorithm={"name": name}),)
    # The classes' own names, such as "mem" of "mine:Mem". Those of built-in methods are handled above.
    names = [ALGORITHMS.resolve(own).name for own in used]
    if found := tuple(variant for variant, own in zip(variants, names, strict=True) if own == name):
        return found
    if name in (ALGORITHMS.resolve(base).name, title(base)):
        return (Variant(algorithm={"name": base}),)
    raise ConfigError(_unknown(name, option, list(dict.fromkeys(labels)), names))


def _unknown(name: str, option: str, labels: Sequence[str], names: Sequence[str]) -> str:
    """Return the error about a name that is neither a label nor a method."""
    by_case = {known.lower(): known for known in (*names, *ALGORITHMS, *reversed(labels))}
    close = difflib.get_close_matches(name.lower(), by_case, n=1)
    if close:
        return f'{option} "{name}" is unknown; did you mean {by_case[close[0]]}?'
    known = f"a label of compare.variants ({', '.join(labels)}), " if labels else ""
    return f'{option} "{name}" is unknown; use {known}one of {", ".join(ALGORITHMS)}, or "package.module:Name"'


def _labels(given: Sequence[str | None], methods: Sequence[AlgorithmConfig]) -> list[str]:
    """Return a label per run: the given one, or the method's title and what sets it apart from others of that title."""
    titles = [title(type(method)) for method in methods]
    labels = []
    for label, name, method in zip(given, titles, methods, strict=True):
        namesakes = [m for g, n, m in zip(given, titles, methods, strict=True) if g is None and n == name]
        labels.append(label or ", ".join([name, *_differences(method, namesakes)]))
    for k, label in enumerate(labels):
        if label in labels[:k]:
            raise ConfigError(f'compare.variants has "{label}" twice; give each variant its own label')
        same = next((other for other in labels[:k] if slug(other) == slug(label)), None)
        if same is not None:
            raise ConfigError(
                f'compare.variants has "{same}" and "{label}", whose folders would have the same name; '
                "give one of them another label"
            )
    return labels


def _differences(method: AlgorithmConfig, namesakes: Sequence[AlgorithmConfig]) -> Iterator[str]:
    """Yield what distinguishes a method from others with the same title: its class, and settings."""
    if len({type(other) for other in namesakes}) > 1:
        yield type(method).__name__
    for name, value in method:
        values: list[Any] = [getattr(other, name) for other in namesakes if hasattr(other, name)]
        if any(other != value for other in values):
            yield f"{name} = {value}"


def naming_variant(label: str) -> AbstractContextManager[None]:
    """Add the variant's label to config errors."""
    return _naming(f'compare.variants, "{label}"')


@contextmanager
def _naming(what: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from None
