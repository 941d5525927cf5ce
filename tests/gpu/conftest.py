"""`make test-gpu` leaves out what is marked `full`, which compiles a kernel of flash-attn's each."""


def pytest_configure(config):
    config.addinivalue_line("markers", "full: minutes of nvcc, for `make test-gpu FULL=1`")
