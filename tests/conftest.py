"""For all tests: signals as a foreground process has them."""

import signal


def pytest_configure() -> None:
    """Take signals that whoever started us ignores, as ``nohup`` and a shell's ``&`` do: children inherit that."""
    for name, handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
        number = getattr(signal, name, None)  # Windows knows no SIGHUP
        if number is not None and signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)
