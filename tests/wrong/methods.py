"""Wrong methods, as a user might write them."""

from typing import Any, ClassVar, NamedTuple

import numpy as np

from raybcgd import Whole
from raybcgd.algorithms import FedAvg


class NoUpload(FedAvg):
    """NoUpload: its client rule returns nothing."""

    name: ClassVar[str] = "no_upload"

    def client_rule(self, work: Any, down: Any, mine: Any) -> Any:
        return None


class OnlyUpload(FedAvg):
    """OnlyUpload: its client rule forgets the client's state."""

    name: ClassVar[str] = "only_upload"

    def client_rule(self, work: Any, down: Any, mine: Any) -> Any:
        return self.Upload(delta=work.sgd(down.x) - down.x)


class NoState(OnlyUpload):
    """NoState: its client rule returns None as the client's state."""

    def client_rule(self, work: Any, down: Any, mine: Any) -> Any:
        return super().client_rule(work, down, mine), None


class ArrayState(OnlyUpload):
    """ArrayState: its client rule returns an array as the client's state."""

    def client_rule(self, work: Any, down: Any, mine: Any) -> Any:
        return super().client_rule(work, down, mine), np.zeros(3)


class ShortUpload(FedAvg):
    """ShortUpload: it uploads five coordinates."""

    name: ClassVar[str] = "short_upload"

    def client_rule(self, work: Any, down: Any, mine: Any) -> Any:
        return self.Upload(delta=work.sgd(down.x)[..., :5]), mine


class NumberUpload(FedAvg):
    """NumberUpload: it uploads a number."""

    name: ClassVar[str] = "number_upload"

    def client_rule(self, work: Any, down: Any, mine: Any) -> Any:
        return self.Upload(delta=0.5), mine


class Crashing(FedAvg):
    """Crashing: its client rule divides by zero."""

    name: ClassVar[str] = "crashing"

    def client_rule(self, work: Any, down: Any, mine: Any) -> Any:
        return 1 // 0


class CrashingServer(FedAvg):
    """CrashingServer: its server rule has a typo."""

    name: ClassVar[str] = "crashing_server"

    def server_rule(self, server: Any, total: Any, rnd: Any) -> Any:
        return server._replace(x=server.x + total.detla)


class OtherShape(FedAvg):
    """OtherShape: its server rule changes the size of the model."""

    name: ClassVar[str] = "other_shape"

    def server_rule(self, server: Any, total: Any, rnd: Any) -> Any:
        return server._replace(x=server.x[:-1])


class Infinite(FedAvg):
    """Infinite: its server rule returns infinities."""

    name: ClassVar[str] = "infinite"

    def server_rule(self, server: Any, total: Any, rnd: Any) -> Any:
        return server._replace(x=server.x / 0)


class Remembers(FedAvg):
    """Remembers: its client rule keeps state in itself."""

    name: ClassVar[str] = "remembers"

    def client_rule(self, work: Any, down: Any, mine: Any) -> Any:
        self.last = down.x
        return super().client_rule(work, down, mine)


class InfiniteClient(FedAvg):
    """InfiniteClient: its client rule returns infinities."""

    name: ClassVar[str] = "infinite_client"

    def client_rule(self, work: Any, down: Any, mine: Any) -> Any:
        return self.Upload(delta=work.sgd(down.x) / 0), mine


class Memory(NamedTuple):
    m: Whole


class ShortState(FedAvg):
    """ShortState: its client state has the wrong size."""

    name: ClassVar[str] = "short_state"
    Client = Memory

    def client_rule(self, work: Any, down: Any, mine: Any) -> Any:
        delta = work.sgd(down.x) - down.x
        return self.Upload(delta=delta), self.Client(m=delta[..., :5])


class ShortSettled(FedAvg):
    """ShortSettled: it settles a client state of the wrong size."""

    name: ClassVar[str] = "short_settled"
    Client = Memory

    def settle(self, mine: Any, terms: Any) -> Any:
        return mine._replace(m=mine.m[..., :5])


class NothingSettled(ShortSettled):
    """NothingSettled: its settle returns nothing."""

    def settle(self, mine: Any, terms: Any) -> Any:
        return None
