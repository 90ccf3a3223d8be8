"""The notebooks as tests: ``KIT_REPLAY=strict KIT_UI=static pytest --nbval --nbval-current-env notebooks``."""

import os

import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_collectstart(collector):
    """Our own type repeats what the Markdown beside it says, and holds counts and durations."""
    if type(collector).__name__ == "IPyNbFile":
        collector.skip_compare += ("application/vnd.kit.turn+json",)
    yield


def pytest_runtest_setup(item):
    """Tell the kernel which notebook it runs, as Jupyter does: the recording bears the notebook's name."""
    os.environ["JPY_SESSION_NAME"] = str(item.path)
