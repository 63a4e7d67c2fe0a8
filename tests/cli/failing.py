"""A backend that cannot start on one of the children."""

from __future__ import annotations

from genkidama.errors import EnvironmentFailure
from genkidama.protocol.vector import Signature
from tests.helpers import ConstantBackend


class FailsOnSecond(ConstantBackend):
    async def startup(self) -> Signature:
        if self.name == "child-2":
            raise EnvironmentFailure("the cable is loose")
        return await super().startup()
