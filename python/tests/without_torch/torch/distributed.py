"""A process that is alone."""


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return False


def get_rank() -> int:
    raise NotImplementedError


def get_world_size() -> int:
    raise NotImplementedError
