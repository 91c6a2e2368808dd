"""Sums vectors over the nodes of a job: rank 0 adds the vectors of the others and returns the sum. Plain TCP."""

from __future__ import annotations

import socket
import struct
import time
from array import array

PORT = 29501
CONNECT_TIMEOUT_S = 60.0
LENGTH = struct.Struct("!I")


class Group:
    """The nodes of one job, as seen from one of them. `sum` is called by every node the same number of times."""

    def __init__(self, *, rank: int, addresses: list[str], port: int = PORT) -> None:
        self.rank, self.size = rank, len(addresses)
        self.peers: list[socket.socket] = []
        if rank == 0:
            self._accept(addresses[0], port)
        else:
            self.peers = [connect(addresses[0], port)]

    def sum(self, values: list[float]) -> list[float]:
        mine = array("d", values)
        if self.rank != 0:
            send(self.peers[0], mine)
            return list(receive(self.peers[0]))
        total = list(mine)
        for peer in self.peers:
            for index, value in enumerate(receive(peer)):
                total[index] += value
        for peer in self.peers:
            send(peer, array("d", total))
        return total

    def close(self) -> None:
        for peer in self.peers:
            peer.close()

    def _accept(self, address: str, port: int) -> None:
        with socket.create_server((address, port)) as server:
            server.settimeout(CONNECT_TIMEOUT_S)
            while len(self.peers) < self.size - 1:
                peer, _ = server.accept()
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.peers.append(peer)


def connect(address: str, port: int) -> socket.socket:
    """Connect to rank 0, which may start a little later."""
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            peer = socket.create_connection((address, port), timeout=5.0)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
            continue
        peer.settimeout(None)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return peer


def send(peer: socket.socket, values: array[float]) -> None:
    payload = values.tobytes()
    peer.sendall(LENGTH.pack(len(payload)) + payload)


def receive(peer: socket.socket) -> array[float]:
    (length,) = LENGTH.unpack(receive_exactly(peer, LENGTH.size))
    values = array("d")
    values.frombytes(receive_exactly(peer, length))
    return values


def receive_exactly(peer: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        chunk = peer.recv(length - len(data))
        if not chunk:
            raise ConnectionError("a node of this job disconnected")
        data += chunk
    return bytes(data)
