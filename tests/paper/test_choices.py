"""The search for the choices that the paper leaves open: its own gradients, and stages that can be run again."""

from paper.choices.gradients import check
from paper.choices.settings import METHODS, TABLES, options_of
from paper.choices.stages import stages


def test_gradients_and_adadelta_agree_with_torch():
    check()


def test_stages_name_tables_methods_and_options_that_there_are():
    for table, method, rate, setting in [task for tasks in stages().values() for task in tasks]:
        assert table in TABLES
        assert method in METHODS
        assert rate > 0.0
        options_of(method, {name: value for name, value in setting.items() if name != "seed"})
