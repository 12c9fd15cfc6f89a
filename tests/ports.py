"""Ports for processes that must know their port before they listen on it, or that are restarted on the same one."""

from __future__ import annotations

import socket


def reserve_port() -> socket.socket:
    """Return a socket that reserves a port of loopback until it is closed.

    Other processes can listen on the port, because both sides set SO_REUSEADDR and this socket never listens. The system does
    not give the port to anybody else who asks for a free one.
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind(("127.0.0.1", 0))
    return reservation


def port_of(reservation: socket.socket) -> int:
    port: int = reservation.getsockname()[1]
    return port
