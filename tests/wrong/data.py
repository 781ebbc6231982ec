"""Wrong data files."""

from tests.wrong.case import CODE, Case, data, nothing, sets
from tests.wrong.files import all_of, images, make_folder, parquet, png, remove, write

DATA = {
    "root missing": data(
        nothing, says="data.root: no such folder: {tmp}/data … point it to a folder with train-*.parquet files"
    ),
    "a relative root that is missing": sets(
        "data.source=parquet",
        "data.root=data",
        says="data.root: no such folder: {tmp}/data; point it to a folder with train-*.parquet files",
    ),
    "a relative image folder that is missing": sets(
        "data.source=image_folder", "data.root=data", says="data.root: no such folder: {tmp}/data; point it to"
    ),
    "root is a file": data(
        write("data", "x"),
        says="data.root: no such folder: {tmp}/data … point it to a folder with train-*.parquet files",
    ),
    "root is empty": data(
        make_folder("data"),
        says="data.root: {tmp}/data has no train-*.parquet … point it to the folder with these files",
    ),
    "text as Parquet": data(
        all_of(write("data/train-0.parquet", "hello"), write("data/test-0.parquet", "hello")),
        says="data.root: cannot read … fetch it again",
    ),
    "no label column": data(
        parquet({"label": None}), says="data.label_column: found no integers … write the labels as integers 0, 1, …"
    ),
    "no image column": data(
        parquet({"image": None}),
        says="data.image_column: no column of … embed the images, for example with `raybcgd data pack`, or",
    ),
    "text instead of images": data(
        parquet({"image": None, "a": ["x"] * 40}),
        says="data.image_column: no column of … embed the images, for example with `raybcgd data pack`, or",
    ),
    "text as a feature": data(
        parquet({"image": None, "a": ["x"] * 40}),
        settings=('data.feature_columns=["a"]',),
        says='data.feature_columns: "a" of … has string; use columns of numbers, or one column of lists of numbers',
    ),
    "no such feature": data(
        parquet({"image": None, "a": [0.5] * 40}),
        settings=('data.feature_columns=["b"]',),
        says='data.feature_columns: "b" is not a feature column of … use some of a',
    ),
    "no such client column": data(
        parquet({}),
        settings=("data.client_column=user", "data.partition.kind=dirichlet"),
        says='data.client_column = "user" is not a column of … use one of image, label',
    ),
    "one client": data(
        parquet({"user": ["a"] * 40}),
        settings=("data.client_column=user", "data.partition.kind=dirichlet"),
        says='data.client_column = "user" has the same client id, a, for every sample; use ids of several clients',
    ),
    "floats as client ids": data(
        parquet({"user": [0.5] * 40}),
        settings=("data.client_column=user", "data.partition.kind=dirichlet"),
        says='data.client_column = "user" of … has double; use integers or strings',
    ),
    "clients without a column": data(
        parquet({}),
        settings=("data.partition.kind=natural",),
        says='data.partition.kind = "natural" needs data with clients; set data.client_column, or pass partition=…',
    ),
    "a regression loss with labels": data(
        parquet({}),
        settings=("model.loss=mse",),
        says='model.loss = "mse" needs float targets, but the data has 4 classes; set data.task = "regression", or',
    ),
    "labels' loss with regression": data(
        parquet({}),
        settings=("data.task=regression",),
        says='model.loss = "cross_entropy" needs labels, but the targets are floats; set model.loss to mse or l1',
    ),
    "string labels": data(
        parquet({"label": ["cat", "dog"] * 20}),
        says="data.label_column: found no integers … write the labels as integers 0, 1, …",
    ),
    "float labels in Parquet": data(
        parquet({"label": [0.5, 1.5] * 20}),
        says="data.label_column: found no integers … write the labels as integers 0, 1, …",
    ),
    "null labels": data(parquet({"label": [0, None] * 20}), says="data.label_column: column 'label' of … remove them"),
    "negative labels": data(
        parquet({"label": [-1, 0, 1, 2] * 10}),
        says="data.train of 'parquet': labels run from -1 … number them from 0, for example with `labels - (-1)`",
    ),
    "negative labels, classes set": data(
        parquet({"label": [-1, 0, 1, 2] * 10}),
        settings=("data.classes=4",),
        says="data.train of 'parquet': labels run from -1 … number them from 0, for example with `labels - (-1)`",
    ),
    "labels from 1": data(
        parquet({"label": [1, 2, 3, 4] * 10}),
        says="data 'parquet': labels run from 1 to 4, so no sample has label 0; number them from 0, for example with "
        "`labels - 1`, or set data.classes to 5",
    ),
    "no such label column": data(
        parquet({}),
        settings=("data.label_column=y",),
        says="data.label_column is y … use label, which has integers in",
    ),
    "no such image column": data(
        parquet({}),
        settings=("data.image_column=x",),
        says="data.image_column is x … use image, which has image bytes in",
    ),
    "the label as image": data(
        parquet({}),
        settings=("data.image_column=label",),
        says="data.image_column is label … use image, which has image bytes in",
    ),
    "no test file": data(
        all_of(parquet({}), remove("data/test-00000-of-00001.parquet")),
        says="data.root: {tmp}/data has no test-*.parquet … add them",
    ),
    "no rows": data(
        parquet({"image": [], "label": []}),
        says="data.image_column: no column of … embed the images, for example with `raybcgd data pack`, or",
    ),
    "labels only in test": data(
        parquet({"label": [0, 1] * 20}, {"label": [0, 9] * 20}),
        says="data.test of 'parquet': labels run from 0 to … fix the labels, or set data.classes to 10 (from Python:",
    ),
    "broken image bytes": data(
        parquet({"image": [{"bytes": b"\x89PNG nonsense", "path": None}] * 40}),
        says="data.root: cannot decode row 0 of … replace it with an 8-bit grey or RGB image, or remove it",
    ),
    "missing image bytes": data(
        parquet({"image": [{"bytes": None, "path": "a.png"}] * 40}),
        says="data.image_column: no column of … embed the images, for example with `raybcgd data pack`, or",
    ),
    "URLs as images": data(
        parquet({"image": ["http://x/y.png"] * 40}),
        says="data.image_column: no column of … embed the images, for example with `raybcgd data pack`, or",
    ),
    "another test size": data(
        parquet({}, {"image": [{"bytes": png(size=9), "path": None}] * 40}),
        says="data.test of 'parquet' has uint8 samples of … use the same shape and dtype for both",
    ),
    "vectors of two lengths": data(
        parquet({"image": [[0.5] * 4] * 39 + [[0.5] * 5]}),
        says='data.feature_columns: "image" of … has lists of 4 to 5 numbers; use lists of one length',
    ),
    "classes too few": data(
        parquet({}),
        settings=("data.classes=2",),
        says="data.train of 'parquet': labels run from 0 to … fix the labels, or set data.classes to 4 (from Python:",
    ),
    "image folder without train": data(
        make_folder("data/cats"),
        source="image_folder",
        says="data.root: the class folders in {tmp}/data … add JPEG or PNG files",
    ),
    "a class only in test": data(
        images(write("data/test/eel/0.png", png())),
        source="image_folder",
        says="data.root: the class {tmp}/data/test/eel is … add it there, or remove it",
    ),
    "text as image": data(
        images(write("data/train/cat/7.png", "hello")),
        source="image_folder",
        says="data.root: cannot decode … replace it with an 8-bit grey or RGB image, or remove it",
    ),
    "an image of another size": data(
        images(write("data/train/cat/7.png", png(size=9))),
        source="image_folder",
        says="data.root: {tmp}/data/train/cat/7.png has … set data.image_size",
    ),
    "CIFAR-10 not there": data(
        make_folder("data"),
        source="cifar10",
        says='data.source = "cifar10": cannot read the … contains a complete cifar-10-batches-py, or set '
        "data.download = true",
    ),
    "Tiny ImageNet elsewhere": data(
        images(), source="tiny_imagenet", says="data.root: cannot read … point it to the unpacked tiny-imagenet-200"
    ),
    "MNIST cut off": data(
        write("data/MNIST/raw/train-images-idx3-ubyte", "x"),
        source="mnist",
        says='data.source = "mnist": cannot read the train … contains a complete MNIST, or set data.download = true',
    ),
    "more clients than images": data(
        images(), source="image_folder", says="data.partition.clients = 20 is more than the … lower it to 12 or less"
    ),
    "crop of vectors": sets(
        f"data.source={CODE}:vectors",
        'data.augment=["crop"]',
        says="data.augment needs images, but this data has none; remove data.augment",
    ),
    "pack a missing folder": Case(
        ("data", "pack", "{tmp}/none", "{tmp}/packed"), "no such folder: {tmp}/none; point it to a folder of images"
    ),
    "pack onto a file": Case(
        ("data", "pack", "{tmp}/data", "{tmp}/packed"),
        "cannot pack into {tmp}/packed ([Errno 17] … choose another folder",
        prepare=all_of(images(), write("packed", "x")),
    ),
    "pack in shards of 0": Case(
        ("data", "pack", "{tmp}/data", "{tmp}/packed", "--shard-size", "0"),
        "shard size is 0; use at least 1 image per file",
        prepare=images(),
    ),
}
