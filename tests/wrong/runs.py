"""Wrong run folders and arguments."""

from tests.wrong.case import Case, nothing, report, resume, sets
from tests.wrong.files import all_of, cut, edit, make_folder, remove, write

RUNS = {
    "resume a missing folder": Case(
        ("resume", "{tmp}/none"),
        "{tmp}/none holds no run (no config.toml) … pass the folder of a run, or start one with `raybcgd train`",
    ),
    "seeds that are no integers": Case(
        ("compare", "{config}", "--seeds", "0,a", "--out", "{out}"),
        "compare.seeds[1] = 'a': must be a valid integer",
    ),
    "resume a file": Case(
        ("resume", "{config}"),
        "{tmp}/config.toml holds no run (no … pass the folder of a run, or start one with `raybcgd train`",
    ),
    "resume an empty folder": Case(
        ("resume", "{tmp}/empty"),
        "{tmp}/empty holds no run (no config.toml) … pass the folder of a run, or start one with `raybcgd train`",
        prepare=make_folder("empty"),
    ),
    "resume several runs": Case(
        ("resume", "{tmp}"),
        "{tmp} is not a run, but holds runs; pass one of them, such as {run} … `raybcgd compare CONFIG --out",
        prepare=remove("config.toml"),
    ),
    "resume without config": resume(
        remove("run/config.toml"),
        says="{tmp}/run holds no run (no config.toml) … pass the folder of a run, or start one with `raybcgd train`",
    ),
    "resume with a cut config": resume(
        cut("run/config.toml", 40), says="{tmp}/run/config.toml is not valid TOML: … fix the file"
    ),
    "resume with an edited config": resume(
        edit("run/config.toml", "lr = 0.05", "lr = 0.06"),
        arguments=("--set", "rounds=6"),
        says="the checkpoint under {tmp}/run/checkpoints … restore these settings, or start a new run in another",
    ),
    "resume with a typo in the config": resume(
        edit("run/config.toml", "lr = 0.05", "lrr = 0.05"),
        says="algorithm.lrr is not a setting of fedbcgd; did you mean lr?",
    ),
    "resume a later format": resume(
        edit("run/config.toml", "version = 3", "version = 4"),
        says="{tmp}/run was written by another version of … use that version, or start the run again with `raybcgd",
    ),
    "resume with a folder as log": resume(
        all_of(remove("run/rounds.jsonl"), make_folder("run/rounds.jsonl")),
        arguments=("--set", "rounds=6"),
        says="cannot write {tmp}/run/rounds.jsonl (Is a … correct that, then resume the run",
        code=1,
    ),
    "resume without checkpoints": resume(
        remove("run/checkpoints"),
        arguments=("--set", "rounds=6"),
        says="{tmp}/run has no usable checkpoint, so its … start a new run in another folder",
    ),
    "resume with cut checkpoints": resume(
        cut("run/checkpoints/*/*", 50),
        arguments=("--set", "rounds=6"),
        says="{tmp}/run has no usable checkpoint, so its … start a new run in another folder",
    ),
    "resume with another seed": resume(
        nothing,
        arguments=("--set", "rounds=6", "--set", "seed=3"),
        says="the run in {tmp}/run belongs to another … restore these settings, or start a new run in another folder",
    ),
    "resume with another model": resume(
        nothing,
        arguments=("--set", "rounds=6", "--set", "model.options.hidden=[9,9,9]"),
        says="the run in {tmp}/run belongs to another … restore these settings, or start a new run in another folder",
    ),
    "resume to fewer rounds": resume(
        nothing, arguments=("--set", "rounds=2"), says="rounds = 2, but 4 rounds are done; raise rounds to continue"
    ),
    "train into a run": Case(
        ("train", "{config}", "--out", "{run}"),
        "{tmp}/run already holds a run … choose another --out, or use `raybcgd resume {tmp}/run`",
    ),
    "train into a file": Case(
        ("train", "{config}", "--out", "{config}"),
        "cannot write to {tmp}/config.toml (File exists); choose another --out",
    ),
    "train below a file": Case(
        ("train", "{config}", "--out", "{config}/run"),
        "cannot write to {tmp}/config.toml/run (Not a directory); choose another --out",
    ),
    "train into nothing": Case(
        ("train", "{config}", "--out", ""), ". already holds a run; choose another --out, or use `raybcgd resume .`"
    ),
    "resume auto of another config": Case(
        ("train", "{config}", "--out", "{run}", "--resume", "auto", "--set", "algorithm.lr=0.3", "--set", "rounds=6"),
        "the run in {tmp}/run belongs to another … restore these settings, or start a new run in another folder",
    ),
    "checkpoints below a file": sets(
        "checkpoint.address={config}/x", says='checkpoint.address = "{tmp}/config.toml/x" … correct it'
    ),
    "report on nothing": Case(
        ("report", "{tmp}/none"),
        "{tmp}/none: no such folder; pass the folder of a run or of a comparison",
    ),
    "report on an empty folder": Case(
        ("report", "{tmp}/empty"),
        "{tmp}/empty contains no run (no config.toml) … pass the folder of a run or of a comparison",
        prepare=make_folder("empty"),
    ),
    "report on a file": Case(
        ("report", "{config}"), "{tmp}/config.toml is a file; pass the folder of a run or of a comparison"
    ),
    "report without rounds": report(
        write("run/rounds.jsonl", ""),
        says="{tmp}/run stopped before its first round was complete; leave it out, or start it again",
    ),
    "report with a garbage log": report(
        write("run/rounds.jsonl", "hello\nworld\n"),
        says="{tmp}/run/rounds.jsonl, line 1, is not a … restore it with `raybcgd resume`",
    ),
    "report with another JSON": report(
        write("run/rounds.jsonl", '{"a": 1}\n'),
        says="{tmp}/run/rounds.jsonl, line 1, is not a … restore it with `raybcgd resume`",
    ),
    "report with a garbage config": report(
        write("run/config.toml", "hello"), says="{tmp}/run/config.toml is not valid TOML: … fix the file"
    ),
    "report with a garbage partition": report(
        write("run/partition.json", "hello"),
        says="{tmp}/run/partition.json is not a partition … delete it to make a report without it",
    ),
    "report with another partition": report(
        write("run/partition.json", '{"a": 1}'),
        says="{tmp}/run/partition.json is not a partition … delete it to make a report without it",
    ),
    "report on a target in percent": report(
        nothing,
        arguments=("--target", "90"),
        says="--target 90 is not an accuracy; use a number between 0 and 1, such as 0.9",
    ),
    "watch a file": Case(("watch", "{config}"), "{tmp}/config.toml is a file; pass the folder of a run"),
    "compare nothing known": Case(
        ("compare", "{config}", "--out", "{out}", "--algorithms", "fedbest"),
        '--algorithms "fedbest" is unknown; use a label of compare.variants (FedAvg, FedAvgM, FedBCGD, FedBCGD+), one',
    ),
    "compare nothing": Case(
        ("compare", "{config}", "--out", "{out}", "--algorithms", ""),
        '--algorithms "" is unknown; use a label of compare.variants (FedAvg, … one of fedavg, fedavgm,',
    ),
    "compare one twice": Case(
        ("compare", "{config}", "--out", "{out}", "--algorithms", "fedavg,fedavg"),
        '--algorithms selects "fedavg" twice; name it once',
    ),
    "compare into a run": Case(
        ("compare", "{config}", "--out", "{run}", "--algorithms", "fedavg"),
        "{tmp}/run holds a run, not a comparison; choose another --out",
    ),
    "blocks of an unknown model": Case(
        ("blocks", "--model", "vgg"), 'model.name = "vgg" is unknown; did you mean vgg19?'
    ),
    "blocks of no shape": Case(
        ("blocks", "--model", "lenet5", "--shape", "0x0x0"),
        "--shape 0x0x0: write it as channels x height x width, such as 3x32x32",
    ),
    "blocks of too small images": Case(
        ("blocks", "--model", "lenet5", "--shape", "3x4x4"),
        'model.name = "lenet5" needs images of at … set it to mlp, resnet8 or vit_tiny',
    ),
    "blocks of another division": Case(
        ("blocks", "--model", "lenet5", "--division", "thirds"),
        'blocks.division = "thirds" is unknown … use layers, balanced, equal, lenet5, lenet5-paper, vgg11,',
    ),
    "no block": Case(("blocks", "--model", "lenet5", "--count", "0"), "blocks.count = 0: must be at least 1"),
    "an unknown table": Case(
        ("settings", "algoritm"),
        "algoritm is not a table of a config … use one of data, data.partition, data.phases, model,",
    ),
    "an unknown paper": Case(
        ("paper", "fedsgd"), "no experiment has paper fedsgd; use one of fedbcgd, fedpvr, block-cyclic"
    ),
    "export to no folder": Case(
        ("export", "{run}", "--csv", "{tmp}/none/x.csv"),
        "cannot write {tmp}/none/x.csv (Cannot save file into a non-existent directory: '{tmp}/none'); choose another",
    ),
    "export to no folder as Parquet": Case(
        ("export", "{run}", "--parquet", "{tmp}/none/x.parquet"),
        "cannot write {tmp}/none/x.parquet (Cannot save file into a non-existent directory: '{tmp}/none'); choose",
    ),
}
