"""The Docker test bed, as tests/system has it."""

from tests.system.conftest import compose_binary, docker_address, docker_bed, shim

__all__ = ["compose_binary", "docker_address", "docker_bed", "shim"]
