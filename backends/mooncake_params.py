"""Settings of the Mooncake backend, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from composer.backends.mooncake_client import ClientSettings
from composer.backends.mooncake_segment import MIN_SEGMENT_BYTES
from composer.errors import Problems
from composer.units import format_bytes, parse_bytes


@dataclass
class MooncakeParams:
    """Settings of the Mooncake backend.

    Attributes:
        address: ``host:port`` of the master, or ``etcd://...`` or ``redis://...`` of several.
            None: start a store of our own, on loopback.
        metrics_address: ``host:port`` of the master's HTTP server, for listings; known by
            itself for a store of our own.
        shared: Name of a store of our own that all processes of this user share which name it;
            None: nobody else uses ours.
        segment: Memory lent to the store.
        segment_in: ``self``: this process lends the segment, and objects in it die with it.
            ``holder``: a child process of our own store does, and always of a shared one; with
            ``address``, nobody.
        protocol: ``tcp`` or ``rdma``.
        rdma_devices: Names of RDMA devices, separated by commas.
        allow_tcp_fallback: Whether TCP may serve where RDMA was asked for and is not there.
        hostname: Our own host, as other clients reach it; None: as the master sees it.
        tenant: Whose keys they are, where the master keeps tenants apart.
        rpc_timeout_s: Longest wait for an answer; the first client of a process decides.
        call_timeout_s: When a call is given up; None: after twice that.
        reprove_s: How often at most a page is asked for that was written, not yet seen.
        lease_s: How long our own store keeps an object after it was asked for or read.
        soft_pin_s: How long objects are evicted only when nothing else can be; None: not at all.
        ssd_path: Folder to which the segment's owner moves what is evicted; None: it is gone.
        prepopulate: Whether the memory of our segment is touched in the background.
    """

    address: str | None = None
    metrics_address: str | None = None
    shared: str | None = None
    segment: str = "8GiB"
    segment_in: str = "self"
    protocol: str = "tcp"
    rdma_devices: str = ""
    allow_tcp_fallback: bool = False
    hostname: str | None = None
    tenant: str | None = None
    rpc_timeout_s: float = 10.0
    call_timeout_s: float | None = None
    reprove_s: float = 10.0
    lease_s: float = 5.0
    soft_pin_s: float | None = None
    ssd_path: str | None = None
    prepopulate: bool = True

    @property
    def deadline_s(self) -> float:
        """When a call is given up."""
        return 2 * self.rpc_timeout_s if self.call_timeout_s is None else self.call_timeout_s

    @property
    def segment_bytes(self) -> int:
        return parse_bytes(self.segment)

    @property
    def own_bytes(self) -> int:
        """Memory that this process itself lends."""
        return self.segment_bytes if self.segment_in == "self" and self.shared is None else 0

    def check(self) -> None:
        """Judge the settings against each other.

        Raises:
            ConfigError: With everything that makes no sense.
        """
        problems = Problems()
        for name in ("rpc_timeout_s", "call_timeout_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                problems.add(f"backend.{name}", f"{value:g} s is no time to wait")
        if self.segment_in not in ("self", "holder"):
            reason = f"{self.segment_in!r} is no place"
            problems.add("backend.segment_in", reason, "Write self or holder")
        if self.shared is not None and self.address is not None:
            reason = "a store at an address is shared already"
            problems.add("backend.shared", reason, "Set one of address and shared")
        try:
            if self.segment_bytes < MIN_SEGMENT_BYTES:
                problems.add(
                    "backend.segment",
                    f"{self.segment} is less than Mooncake lends",
                    f"Lend {format_bytes(MIN_SEGMENT_BYTES)} or more",
                )
        except ValueError as error:
            problems.add("backend.segment", str(error))
        problems.raise_if_any()

    def client(self, address: str, metrics_address: str | None) -> ClientSettings:
        """How a client of the store at ``address`` is set up."""
        return ClientSettings(
            address,
            metrics_address,
            segment_bytes=self.own_bytes,
            protocol=self.protocol,
            rdma_devices=self.rdma_devices,
            hostname=self.hostname,
            allow_tcp_fallback=self.allow_tcp_fallback,
            tenant=self.tenant,
            rpc_timeout_s=self.rpc_timeout_s,
            soft_pin_s=self.soft_pin_s,
            ssd_path=self.ssd_path if self.own_bytes else None,
        )
