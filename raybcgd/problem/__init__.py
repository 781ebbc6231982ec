"""The training problem: everything that the server and the hosts derive from a config and the data."""

from raybcgd.problem.checks import check_compare_target as check_compare_target
from raybcgd.problem.definition import Data as Data
from raybcgd.problem.definition import Problem as Problem
from raybcgd.problem.prepare import load_data as load_data
from raybcgd.problem.prepare import partition_data as partition_data
from raybcgd.problem.prepare import prepare as prepare
from raybcgd.problem.prepare import with_partition as with_partition
