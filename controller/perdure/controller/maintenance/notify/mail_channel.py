"""The channel of e-mail, with the standard library's SMTP client."""

from __future__ import annotations

import hashlib
import smtplib
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime

from perdure.controller.maintenance.notify.channel_protocol import TIMEOUT_S, Delivered, Message, NotDelivered
from perdure.controller.maintenance.notify.exchange_limit import ExchangeLimit
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.config.notify_config import SmtpConfig


@dataclass(frozen=True)
class MailChannel:
    """Mails to `addresses`. All messages about a job belong to one thread. `clock`: the wall clock."""

    smtp: SmtpConfig
    addresses: tuple[str, ...]
    clock: Clock

    def deliver(self, message: Message) -> Delivered | NotDelivered:
        with ExchangeLimit(TIMEOUT_S) as limit:
            try:
                self._send(message, limit)
            except (OSError, smtplib.SMTPException, ValueError) as error:
                text = str(error) or type(error).__name__
                if isinstance(error, socket.gaierror | ConnectionError):
                    text = f"{self.smtp.host}:{self.smtp.port}: {text}"
                return NotDelivered(f"timed out after {limit.limit_s:g} s" if limit.is_over else text)
        return Delivered(f"mailed to {len(self.addresses)}")

    def _send(self, message: Message, limit: ExchangeLimit) -> None:
        with _LimitedSmtp(self.smtp, limit) as server:
            if self.smtp.security == "starttls":
                server.starttls(context=ssl.create_default_context())
            if self.smtp.user:
                server.login(self.smtp.user, self._password())
            server.send_message(self._compose(message), self.smtp.sender, list(self.addresses))

    def _password(self) -> str:
        return self.smtp.password_file.read_text().strip() if self.smtp.password_file else ""

    def _compose(self, message: Message) -> EmailMessage:
        domain = self.smtp.sender.rpartition("@")[2].strip(">") or "perdure"
        mail = EmailMessage()
        mail["From"] = self.smtp.sender
        mail["To"] = ", ".join(self.addresses)
        mail["Subject"] = " ".join(message.title.split())
        mail["Date"] = format_datetime(datetime.fromtimestamp(self.clock.now(), UTC))
        mail["Message-ID"] = f"<{message.id}@{domain}>"
        mail["Auto-Submitted"] = "auto-generated"
        mail["X-Perdure-Event"] = message.id
        if message.thread:
            thread = f"<{hashlib.sha256(message.thread.encode()).hexdigest()[:24]}@{domain}>"
            mail["References"] = mail["In-Reply-To"] = thread
        mail.set_content(message.text + "\n")
        return mail


class _LimitedSmtp(smtplib.SMTP):
    """A client that is connected, and whose whole session has one time limit."""

    def __init__(self, config: SmtpConfig, limit: ExchangeLimit) -> None:
        self._tls = ssl.create_default_context() if config.security == "tls" else None
        self._limit = limit
        super().__init__(config.host, config.port, timeout=TIMEOUT_S)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:  # noqa: ARG002 - smtplib's signature
        """Where smtplib's own SMTP_SSL begins TLS, too."""
        connected = socket.create_connection((host, port), timeout=self._limit.left_s)
        self._limit.watch(connected)
        return self._tls.wrap_socket(connected, server_hostname=host) if self._tls else connected
