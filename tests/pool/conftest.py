from tests.eager import eager_training  # noqa: F401 (a fixture)
