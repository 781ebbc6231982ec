"""Wrong config files and settings."""

from tests.wrong.case import Case, sets, text
from tests.wrong.files import png

FILES = {
    "no such config": Case(("train", "{tmp}/none.toml"), "cannot read the config {tmp}/none.toml: No … check the path"),
    "the config is a folder": Case(("train", "{tmp}"), "cannot read the config {tmp}: Is a directory; check the path"),
    "half a line": text("rounds = ", says="{tmp}/own.toml is not valid TOML: Invalid … fix the file"),
    "a PNG as config": text(
        png(), says="{tmp}/own.toml is not valid TOML: it is not UTF-8 text; pass a config saved as UTF-8"
    ),
    "JSON as config": text('{"rounds": 3}', says="{tmp}/own.toml is not valid TOML: Invalid … fix the file"),
    "YAML as config": text(
        "rounds: 3\ndata:\n  source: digits\n", says="{tmp}/own.toml is not valid TOML: Expected … fix the file"
    ),
    "UTF-16 as config": text(
        "rounds = 3".encode("utf-16"),
        says="{tmp}/own.toml is not valid TOML: it is not UTF-8 text; pass a config saved as UTF-8",
    ),
    "a byte order mark": text("\ufeffrounds = -3", says="rounds = -3: must be at least 1"),
    "a key twice": text("rounds = 3\nrounds = 4", says="{tmp}/own.toml is not valid TOML: Cannot … fix the file"),
    "a table twice": text(
        "[data]\nroot = 'x'\n[data]\nsource = 'digits'", says="{tmp}/own.toml is not valid TOML: Cannot … fix the file"
    ),
    "extends a missing file": text(
        'extends = "base.toml"', says="cannot read the config {tmp}/base.toml, which … check the path"
    ),
    "extends itself": text(
        'extends = "own.toml"', says='extends = "own.toml" in {tmp}/own.toml is circular; name another config'
    ),
    "extends a folder": text('extends = "."', says="cannot read the config {tmp}, which … check the path"),
    "extends a number": text("extends = 3", says="extends = 3 in {tmp}/own.toml is not a path; name another config"),
    "a number as table": text("engine = 'local'\ndata = 3", says="data = 3: must be a table"),
    "a name as table": text(
        "engine = 'local'\nalgorithm = 'fedavg'",
        says="algorithm = 'fedavg' is not a table … write [algorithm], or pass an instance of Algorithm",
    ),
    "an array of tables": text(
        "engine = 'local'\n[[data]]\nsource = 'digits'", says="data = [{'source': 'digits'}]: must be a table"
    ),
    "a later format": text(
        "version = 99\nengine = 'local'", says="version = 99: must be 3; use the version of raybcgd that wrote it"
    ),
    "a list as number": text("engine = 'local'\nrounds = [3]", says="rounds = [3]: must be a valid integer"),
    "a date as number": text(
        "engine = 'local'\nrounds = 2024-01-01", says="rounds = datetime.date(2024, 1, 1): must be a valid integer"
    ),
    "a huge number": text(
        f"engine = 'local'\nrounds = 1{'0' * 5000}", says="{tmp}/own.toml is not valid TOML: Exceeds the … fix the file"
    ),
    "a nested bomb": text(
        f"engine = 'local'\nx = {'[' * 3000}{']' * 3000}",
        says="{tmp}/own.toml is not a config: its values are nested too deeply; fix the file",
    ),
}
VALUES = {
    "--set without a value": sets(
        "rounds", says="--set rounds: write it as key=value, such as --set algorithm.lr=0.05"
    ),
    "--set without a key": sets("=3", says="--set =3: write it as key=value, such as --set algorithm.lr=0.05"),
    "--set with two dots": sets(
        "data..root=x", says="--set data..root=x: write it as key=value, such as --set algorithm.lr=0.05"
    ),
    "--set a table": sets(
        "algorithm=3", says="algorithm = 3 is not a table … write [algorithm], or pass an instance of Algorithm"
    ),
    "--set below a value": sets(
        "rounds.max=3", says="rounds.max cannot be set: rounds is not a table; correct the key"
    ),
    "words as number": sets(
        "rounds=ten", says="rounds = 'ten': must be a valid integer, unable to parse string as an integer"
    ),
    "no rounds": sets("rounds=0", says="rounds = 0: must be at least 1"),
    "half a round": sets(
        "rounds=1.5", says="rounds = 1.5: must be a valid integer, got a number with a fractional part"
    ),
    "unknown engine": sets("engine=spark", says="engine = 'spark': must be 'ray' or 'local'"),
    "a setting at the wrong level": text(
        "engine = 'local'\nlr = 0.1", says="lr is not a setting; did you mean algorithm.lr?"
    ),
    "another library's name": sets(
        "algorithm.learning_rate=0.1",
        says="algorithm.learning_rate is not a setting of … use one of lr, lr_schedule, lr_decay, lr_milestones,",
    ),
    "a setting of another method": sets(
        "algorithm.name=fedavg",
        "algorithm.momentum=0.5",
        says="algorithm.momentum is not a setting of fedavg … it is a setting of fedavgm, fedbcgd, fedbcgd+: remove",
    ),
    "lr nan": sets("algorithm.lr=nan", says="algorithm.lr = nan: must be a finite number"),
    "momentum too large": sets("algorithm.momentum=1.5", says="algorithm.momentum = 1.5: must be less than 1"),
    "cosine without length": sets(
        "algorithm.lr_schedule=cosine", says='algorithm: lr_schedule = "cosine" needs … set it to the number of rounds'
    ),
    "multistep without milestones": sets(
        "algorithm.lr_schedule=multistep",
        says='algorithm: lr_schedule = "multistep" needs … list the rounds at which lr shrinks',
    ),
    "beta 1": sets("algorithm.name=fedadam", "algorithm.beta1=1", says="algorithm.beta1 = 1: must be less than 1"),
    "more evaluated clients than there are": sets(
        "evaluation.clients=99", says='evaluation.clients = 99, but there are 20 clients; set it to "all", or lower it'
    ),
    "no epochs": sets("local.epochs=0", says="local.epochs = 0: must be at least 1"),
    "no steps": sets("local.steps=0", says="local.steps = 0: must be at least 1"),
    "empty batches": sets("local.batch_size=0", says="local.batch_size = 0: must be at least 1, or 'full'"),
    "misspelt full": sets("local.batch_size=ful", says="local.batch_size = 'ful': must be a valid"),
    "negative stack": sets("local.stack=-1", says="local.stack = -1: must be 'auto', or at least 0"),
    "everything shared by name": sets(
        'blocks.shared=["1", "3", "5", "7"]',
        says='blocks.shared names all layers of the model; name fewer, or set it to "all"',
    ),
    "one name for two metrics": sets(
        'evaluation.metrics=["top5", "torch.functional:top5"]',
        says="evaluation.metrics = … two metrics are called 'top5'; rename one function",
    ),
    "a metric of numbers for labels": sets(
        'evaluation.metrics=["absolute_error"]',
        says='evaluation.metrics: "absolute_error" is for regression, but the data has 10 classes; remove it',
    ),
    "top5 of two classes": sets(
        'evaluation.metrics=["top5"]',
        "data.task=binary",
        says='evaluation.metrics: "top5" needs more than 5 classes, but the data has 2; remove it',
    ),
    "two cohort sizes": sets(
        "cohort.clients_per_block=2", "cohort.clients_per_round=6", says="cohort: clients_per_block and … remove one"
    ),
    "larger cohort than population": sets(
        "cohort.clients_per_round=100",
        says="cohort.clients_per_round = 100 needs 100 clients per round, but there are 20; lower it, or raise",
    ),
    "bandwidth without links": sets(
        "cohort.assignment=bandwidth", says='cohort: assignment = "bandwidth" needs the … add a [cohort.links] table'
    ),
    "negative deadline": sets(
        "cohort.deadline_seconds=-1", says="cohort.deadline_seconds = -1: must be greater than 0"
    ),
    "time budget without links": sets(
        "budget.simulated_seconds=10", says="budget.simulated_seconds needs the clients' … add a [cohort.links] table"
    ),
    "no budget": sets("budget.upload_d=0", says="budget.upload_d = 0: must be greater than 0"),
    "top-k twice": sets("wire.codec=topk", "wire.k=3", "wire.fraction=0.1", says="wire: set k or fraction, not both"),
    "top-k fraction 2": sets("wire.codec=topk", "wire.fraction=2", says="wire.fraction = 2: must be at most 1"),
    "no levels": sets("wire.codec=qsgd", "wire.levels=0", says="wire.levels = 0: must be at least 1"),
    "unknown codec": sets(
        "wire.codec=zip",
        says='wire.codec = "zip" is unknown … use one of raw, bf16, qsgd, topk, or "package.module:Name"',
    ),
    "no blocks": sets("blocks.count=0", says="blocks.count = 0: must be at least 1"),
    "unknown shared layer": sets(
        'blocks.shared=["head"]', says='blocks.shared names "head", but the model\'s layers are 1, 3, 5, 7; correct it'
    ),
    "unknown group": sets(
        'blocks.groups=[["conv1"]]', says='blocks.groups names "conv1", which is not one … correct it'
    ),
    "incomplete groups": sets(
        'blocks.groups=[["layers.0"]]', says='blocks.groups names "layers.0", which is not … correct it'
    ),
    "empty group": sets(
        "blocks.groups=[[]]", says="blocks.groups leaves out 1, 3, 5; add them to a group or to blocks.shared"
    ),
    "shared number with layers": sets(
        "blocks.shared=10", says="blocks.shared = 10 is a number of … name layers instead"
    ),
    "more slices than coordinates": sets(
        "blocks.division=equal",
        "blocks.count=100000000",
        "blocks.shared=none",
        says="blocks.count = 100000000 is more than the … lower blocks.count or blocks.shared",
    ),
    "redivide every 0": sets("blocks.redivide_every=0", says="blocks.redivide_every = 0: must be at least 1"),
    "shift layers": sets(
        "blocks.redivide_every=2", "blocks.redivide=shift", says='blocks.redivide = "shift" needs … change one'
    ),
    "evaluate never": sets("evaluation.every=0", says="evaluation.every = 0: must be at least 1"),
    "keep no checkpoint": sets("checkpoint.keep=0", says="checkpoint.keep = 0: must be at least 1"),
    "port too large": sets("metrics.port=70000", says="metrics.port = 70000: must be at most 65535"),
    "conformal level 1.5": sets(
        "analysis.conformal_levels=[1.5]", says="analysis.conformal_levels[0] = 1.5: must be less than 1"
    ),
    "no hosts": sets("hosts.count=0", says="hosts.count = 0: must be at least 1"),
    "no port of the cluster": sets("hosts.address=head", says="hosts.address = 'head': must be HOST:PORT"),
    "a port above 65535": sets("hosts.address=head:99999", says="hosts.address = 'head:99999': must be HOST:PORT"),
    "target in percent": sets("compare.target=90", says="compare.target = 90: must be at most 1"),
    "validation without share": sets(
        "data.evaluate_on=validation", says='data: evaluate_on = "validation" needs … set it to 0.01 or more'
    ),
    "all for validation": sets("data.validation_share=1.0", says="data.validation_share = 1.0: must be less than 1"),
    "nearly all for validation": sets(
        "data.validation_share=0.999",
        says="data.validation_share = 0.999 holds out all 1442 training samples; lower it, or add",
    ),
    "unknown augmentation": sets(
        'data.augment=["rotate"]', says="data.augment[0] = 'rotate': must be 'crop' or 'flip'"
    ),
    "positive label missing": sets(
        "data.task=binary",
        "data.positive=[99]",
        says="data.positive = [99]: name some, but not all, of the labels 0 .. 9",
    ),
    "positive without binary": sets(
        "data.positive=[1]", says="data.positive has no effect without … remove it, or set the task"
    ),
    "binary loss with ten classes": sets(
        "model.loss=binary_cross_entropy",
        says='model.loss = "binary_cross_entropy" needs two … set model.loss = "cross_entropy" or data.task = "binary"',
    ),
    "options of digits": sets(
        "data.options.scale=2", says='data.options has no effect with data.source = "digits"; remove it'
    ),
    "classes of digits": sets(
        "data.classes=20", says='data.classes has no effect with data.source = "digits"; remove it'
    ),
    "root of digits": sets("data.root=/tmp", says='data.root has no effect with data.source = "digits"; remove it'),
    "a column of digits": sets(
        "data.label_column=y", says='data.label_column has no effect with data.source = "digits"; remove it'
    ),
    "no clients": sets("data.partition.clients=0", says="data.partition.clients = 0: must be at least 1"),
    "rho 0": sets("data.partition.rho=0", says="data.partition.rho = 0: must be at least 0.000000001"),
    "more shards than samples": sets(
        "data.partition.kind=shards",
        "data.partition.shards_per_client=1000",
        says="data.partition.shards_per_client = 1000 needs … lower it to at most 72",
    ),
    "negative sigma": sets(
        "data.partition.kind=lognormal",
        "data.partition.sigma=-1",
        says="data.partition.sigma = -1: must be at least 0",
    ),
    "rho for iid": text(
        "engine = 'local'\n[data.partition]\nkind = 'iid'\nrho = 0.3",
        says="data.partition.rho is not a setting of iid … it is a setting of dirichlet, dirichlet_free: remove it, or",
    ),
    "too many epochs": sets(
        "local.epochs=99999999999999999999",
        says="local.epochs = 99999999999999999999: must be at most 100000",
    ),
    "more phases than labels": sets(
        "data.phases.count=99",
        says="data.phases.count = 99 is more than the 10 … lower it to 10 or less, or set data.phases.shared_labels",
    ),
    "unknown phase labels": sets(
        "data.phases.labels=[[0,1],[99]]", says="data.phases: labels has 2 phases, but count = 5; change one"
    ),
    "phase count mismatch": sets(
        "data.phases.count=3",
        "data.phases.labels=[[0],[1]]",
        says="data.phases: labels has 2 phases, but count = 3; change one",
    ),
    "model option nan": sets(
        "model.options={dropout=nan}", says="model.options.dropout = nan: must be a finite number"
    ),
    "unknown model option": sets(
        "model.options={hiden=[3]}", says="model.options has hiden, but mlp accepts hidden; correct the names"
    ),
    "words as width": sets(
        'model.options={hidden=["wide"]}', says="model.options.hidden.0 = 'wide' of mlp: Input … correct it"
    ),
    "negative width": sets(
        "model.options={hidden=[-3]}",
        says="model.options.hidden.0 = -3 of mlp: Input should be greater than 0; correct it",
    ),
    "model too large": sets(
        "model.options={hidden=[999999999999]}",
        says='model.name = "mlp" does not fit into memory … choose a smaller model, or smaller model.options',
    ),
    "lr 1e30": sets("algorithm.lr=1e30", code=1, says="round 1 diverged: client 9 uploaded … lower algorithm.lr"),
}
