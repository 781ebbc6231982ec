"""Wrong models, losses, methods, partitions, codecs and sources of the user."""

from tests.wrong.case import CODE, METHODS, model, sets
from tests.wrong.files import write

OWN_CODE = {
    "module not found": sets(
        "model.name=nomodule:Net",
        says='model.name = "nomodule:Net" cannot be … fix it, install it, or add its folder to PYTHONPATH',
    ),
    "name not found": model(
        "Nett", says='model.name = "tests.wrong.code:Nett" cannot … fix it, install it, or add its folder to PYTHONPATH'
    ),
    "no colon": sets(
        "model.name=tests.wrong.code",
        says='model.name = "tests.wrong.code" is unknown … use one of mlp, logistic, sigmoid_erm, lenet5, cnn, vgg11,',
    ),
    "two colons": sets(
        "model.name=a:b:c",
        says='model.name = "a:b:c" cannot be imported … fix it, install it, or add its folder to PYTHONPATH',
    ),
    "empty name": sets(
        "model.name=", says='model.name = "" is unknown … use one of mlp, logistic, sigmoid_erm, lenet5, cnn, vgg11,'
    ),
    "a number as model": model(
        "NUMBER", says='model.name = "tests.wrong.code:NUMBER" is not … name a function or a class'
    ),
    "a syntax error": sets(
        "model.name=broken:Net",
        prepare=write("broken.py", "def Net(:"),
        says='model.name = "broken:Net" cannot be imported … fix it, install it, or add its folder to PYTHONPATH',
    ),
    "an import that fails": sets(
        "model.name=needy:Net",
        prepare=write("needy.py", "import nomodule"),
        says='model.name = "needy:Net" cannot be imported … fix it, install it, or add its folder to PYTHONPATH',
    ),
    "an import that exits": sets(
        "model.name=leaving:Net",
        prepare=write("leaving.py", "import sys\nsys.exit(0)"),
        says='model.name = "leaving:Net" cannot be imported … fix it, install it, or add its folder to PYTHONPATH',
    ),
    "not a module": model(
        "not_a_module", says='model.name = "tests.wrong.code:not_a_module" … return a torch.nn.Module'
    ),
    "no parameters": model(
        "no_parameters", says="the model has no trainable parameters; unfreeze some, or choose another model"
    ),
    "frozen": model("frozen", says="the model has no trainable parameters; unfreeze some, or choose another model"),
    "another input": model(
        "for_cifar", says='model.name = "tests.wrong.code:for_cifar" does not accept inputs of shape 1x8x8 … choose'
    ),
    "lazy layers": model(
        "lazy", says='layer "1" of the model is lazy and has no size … use a layer with explicit sizes'
    ),
    "meta device": model(
        "on_meta", says='model.name = "tests.wrong.code:on_meta" does … choose another model, or set model.options'
    ),
    "one output": model(
        "one_output",
        says='model.name = "tests.wrong.code:one_output" returns 1 output per sample, but the data has 10 classes; '
        "return one output per class, or correct the labels",
    ),
    "a failing forward": model(
        "Failing",
        says='model.name = "tests.wrong.code:Failing" fails in its forward pass: RuntimeError: the attention mask '
        "(code.py: … ); fix it (the inputs have shape 1x8x8)",
    ),
    "a misspelled attribute in forward": model(
        "Misspelled",
        says='model.name = "tests.wrong.code:Misspelled" fails in its forward pass: AttributeError: … (code.py: … ); '
        "fix it",
    ),
    "failing only in training": model(
        "FailingInTraining",
        says="model.name = … fails in its forward pass: in training mode, RuntimeError: only in training (code.py:",
    ),
    "a list from the model": model(
        "Lists",
        says='model.name = "tests.wrong.code:Lists": it … return a tensor of logits, a tuple that starts with it, or',
    ),
    "nothing from the model": model(
        "Nothing",
        says='model.name = "tests.wrong.code:Nothing": it … return a tensor of logits, a tuple that starts with it, or',
    ),
    "a dict without logits": model(
        "Unlabelled",
        says='model.name = "tests.wrong.code:Unlabelled": … return a tensor of logits, a tuple that starts with it, or',
    ),
    "labels from the model": model(
        "Labels", says='model.name = "tests.wrong.code:Labels" … return logits, which are floats'
    ),
    "detached outputs": model(
        "Detached",
        says='model.name = "tests.wrong.code:Detached": its … remove `detach` and `no_grad` from its forward pass',
    ),
    "outputs that are nan": model(
        "NotANumber",
        says='model.name = "tests.wrong.code:NotANumber" … check its initial parameters and its forward pass',
    ),
    "outputs without a batch": model(
        "Squeezed", says='model.name = "tests.wrong.code:Squeezed" … return one row per sample'
    ),
    "super().__init__ forgotten": model(
        "WithoutSuper", says='model.name = "tests.wrong.code:WithoutSuper" … fix it, or its settings'
    ),
    "a model with one argument": model(
        "one_argument",
        says='model.name = "tests.wrong.code:one_argument" cannot be called as f(input_shape, classes, **options) (too '
        "many positional arguments); accept input_shape and classes as its first two arguments",
    ),
    "arguments without values": model("NeedsArguments", says="model.name = … set its arguments in model.options"),
    "a vector as loss": sets(
        f"model.loss={CODE}:vector_loss",
        says='model.loss = "tests.wrong.code:vector_loss" … return their mean, as a tensor of shape ()',
    ),
    "a loss without reduction": sets(
        f"model.loss={CODE}:no_reduction",
        says='model.loss = "tests.wrong.code:no_reduction" … fix it; it is called as loss(outputs, targets, reduction=',
    ),
    "a float as loss": sets(
        f"model.loss={CODE}:float_loss",
        says='model.loss = "tests.wrong.code:float_loss" … return one value per sample, as a tensor of shape (2,)',
    ),
    "a loss that fails": sets(
        f"model.loss={CODE}:failing_loss",
        says='model.loss = "tests.wrong.code:failing_loss" … (code.py: … ); fix it; it is called as loss(outputs',
    ),
    "a method that is a number": sets(
        f"algorithm.name={CODE}:NUMBER", says='algorithm.name = "tests.wrong.code:NUMBER" is … use one that is'
    ),
    "a method that is a model": sets(
        f"algorithm.name={CODE}:Net", says='algorithm.name = "tests.wrong.code:Net" is … use one that is'
    ),
    "a method without upload": sets(
        f"algorithm.name={METHODS}:NoUpload",
        "algorithm.lr=0.1",
        code=1,
        says="round 1 failed: client_rule of NoUpload returned NoneType; return (self.Upload(…), self.Client(…))",
    ),
    "a method that returns only its upload": sets(
        f"algorithm.name={METHODS}:OnlyUpload",
        'cohort.on_client_error="drop"',
        code=1,
        says="round 1 failed: client_rule of OnlyUpload returned Upload; return (self.Upload(…), self.Client(…))",
    ),
    "a method that returns no state": sets(
        f"algorithm.name={METHODS}:NoState",
        code=1,
        says="round 1 failed: client_rule of NoState returned (Upload, NoneType); return (self.Upload(…), self.Clien",
    ),
    "a method that returns an array as state": sets(
        f"algorithm.name={METHODS}:ArrayState",
        code=1,
        says="round 1 failed: client_rule of ArrayState returned (Upload, ndarray); return (self.Upload(…), self.Clien",
    ),
    "an upload of another size": sets(
        f"algorithm.name={METHODS}:ShortUpload",
        code=1,
        says="round 1 failed: client_rule of ShortUpload returned Upload.delta as a tensor of shape (1, 5); return a "
        "tensor of shape (1, 1754)",
    ),
    "an upload without a vector": sets(
        f"algorithm.name={METHODS}:NumberUpload",
        code=1,
        says="round 1 failed: client_rule of NumberUpload returned Upload.delta as float; return a tensor of shape (1,",
    ),
    "a client rule that fails": sets(
        f"algorithm.name={METHODS}:Crashing",
        code=1,
        says="client 9 failed in round 1: … fix it, or, if only some clients fail, set cohort",
    ),
    "a server rule that fails": sets(
        f"algorithm.name={METHODS}:CrashingServer", code=1, says="the server rule of algorithm.name = … fix it"
    ),
    "a server rule that shrinks": sets(
        f"algorithm.name={METHODS}:OtherShape",
        code=1,
        says="the server rule of algorithm.name = … return a tensor of shape (1754,)",
    ),
    "a server rule that diverges": sets(
        f"algorithm.name={METHODS}:Infinite",
        code=1,
        says="round 1 diverged: block 0 of the model is not finite, but all uploads were; check server_rule of "
        "Infinite, or lower algorithm.lr",
    ),
    "a rule with state of its own": sets(
        f"algorithm.name={METHODS}:Remembers",
        code=1,
        says="client 9 failed in round 1: ValidationError: Instance is frozen (methods.py:",
    ),
    "a client rule that diverges": sets(
        f"algorithm.name={METHODS}:InfiniteClient",
        code=1,
        says="round 1 diverged: client 9 uploaded non-finite values; check client_rule of InfiniteClient, or lower",
    ),
    "a client state of another size": sets(
        f"algorithm.name={METHODS}:ShortState",
        code=1,
        says="round 1 failed: client_rule of ShortState returned Client.m as a tensor of shape (1, 5); return a tensor "
        "of shape (1, 1754)",
    ),
    "a settled state of another size": sets(
        f"algorithm.name={METHODS}:ShortSettled",
        code=1,
        says="round 1 failed: settle of ShortSettled returned Client.m as a tensor of shape (1, 5); return a tensor of "
        "shape (1, 1754)",
    ),
    "a settled state that is missing": sets(
        f"algorithm.name={METHODS}:NothingSettled",
        code=1,
        says="round 1 failed: settle of NothingSettled returned NoneType; return self.Client(…)",
    ),
    "a partition of too few samples": sets(
        f"data.partition.kind={CODE}:TooFew", says="data.partition.kind = … return one integer per training sample"
    ),
    "a partition with strangers": sets(
        f"data.partition.kind={CODE}:Strangers", says="data.partition.kind = … return 0 to 19, or -1 for none"
    ),
    "a partition that fails": sets(
        f"data.partition.kind={CODE}:FailingPartition", says="data.partition.kind = … fix it, or its settings"
    ),
    "a codec of another size": sets(
        f"wire.codec={CODE}:ShortCodec",
        code=1,
        says='round 1 failed: wire.codec = "tests.wrong.code:ShortCodec": … ; make `encode` and `size` agree',
    ),
    "a codec that fails": sets(
        f"wire.codec={CODE}:FailingCodec",
        code=1,
        says="client 9 failed in round 1: ValueError: bad … fix it, or, if only some clients fail, set cohort",
    ),
    "a source that returns nothing": sets(
        f"data.source={CODE}:returns_nothing", says="data.source = … return a raybcgd.Dataset"
    ),
    "a source that returns a tuple": sets(
        f"data.source={CODE}:returns_a_tuple", says="data.source = … return a raybcgd.Dataset"
    ),
    "a source that fails": sets(
        f"data.source={CODE}:fails", says='data.source = "tests.wrong.code:fails" failed … fix it, or its settings'
    ),
    "a source without argument": sets(
        f"data.source={CODE}:no_argument", says='data.source = "tests.wrong.code:no_argument" … fix it, or its settings'
    ),
    "nan in the data": sets(
        f"data.source={CODE}:with_nan", says="data.train of 'tensors': inputs contain NaN or infinity; remove them"
    ),
    "float labels": sets(
        f"data.source={CODE}:float_labels",
        says='model.loss = "cross_entropy" needs labels, but the targets are floats; set model.loss to mse or l1',
    ),
    "fewer labels than inputs": sets(
        f"data.source={CODE}:fewer_labels", says="data.train of 'tensors': 100 inputs but … give one label per sample"
    ),
    "no test data": sets(
        f"data.source={CODE}:no_test", says="data.test of 'tensors': it is empty; add at least one sample"
    ),
    "no training data": sets(
        f"data.source={CODE}:no_train", says="data.train of 'tensors': it is empty; add at least one sample"
    ),
    "labels from -1": sets(
        f"data.source={CODE}:minus_one",
        says="data.train of 'tensors': labels run from -1 … number them from 0, for example with `labels - (-1)`",
    ),
    "one-hot labels": sets(
        f"data.source={CODE}:one_hot",
        says="data.train of 'tensors': 100 inputs but … give one label per sample, for example with `targets.argmax(1)",
    ),
    "two outputs": sets(
        f"data.source={CODE}:two_outputs",
        says="data.train of 'tensors': 100 inputs but targets of shape (100, 2); give one value per sample (a "
        "regression has one output), for example with `targets[:, 0]`",
    ),
    "another test shape": sets(
        f"data.source={CODE}:other_test_shape",
        says="data.test of 'tensors' has float32 samples of … use the same shape and dtype for both",
    ),
    "scalars as data": sets(
        f"data.source={CODE}:scalars", says='data.source = "tests.wrong.code:scalars" … fix it, or its settings'
    ),
}
