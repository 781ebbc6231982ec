"""A stand-in accelerator for tests: the torch device "standin", whose kernels are the CPU's.

It refuses what CUDA refuses: tensors on two devices in one operation, and CPU generators. It counts the copies between
host and device. There are two devices; `CUDA_VISIBLE_DEVICES` limits them as it does for CUDA. With the parent of this
folder on `PYTHONPATH`, every process that imports torch loads it, including Ray's workers.
"""

from standin.build import load as load
from standin.build import missing as missing
from standin.traffic import Copies as Copies
from standin.traffic import Traffic as Traffic
from standin.traffic import counting as counting
