"""The channel of e-mail, with the standard library's SMTP client."""

from __future__ import annotations

import hashlib
import smtplib
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime

from perdure.controller.maintenance.notify.delivery import TIMEOUT_S, Delivered, Message, NotDelivered
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.config.notify_config import SmtpConfig


@dataclass(frozen=True)
class MailChannel:
    """Mails to `addresses`. All messages about a job belong to one thread. `clock`: the wall clock."""

    smtp: SmtpConfig
    addresses: tuple[str, ...]
    clock: Clock

    def deliver(self, message: Message) -> Delivered | NotDelivered:
        try:
            with self._connect() as server:
                if self.smtp.security == "starttls":
                    server.starttls(context=ssl.create_default_context())
                if self.smtp.user:
                    server.login(self.smtp.user, self._password())
                server.send_message(self._compose(message), self.smtp.sender, list(self.addresses))
        except (OSError, smtplib.SMTPException, ValueError) as error:
            return NotDelivered(str(error) or type(error).__name__)
        return Delivered(f"mailed to {len(self.addresses)}")

    def _connect(self) -> smtplib.SMTP:
        host, port = self.smtp.host, self.smtp.port
        if self.smtp.security == "tls":
            return smtplib.SMTP_SSL(host, port, timeout=TIMEOUT_S, context=ssl.create_default_context())
        return smtplib.SMTP(host, port, timeout=TIMEOUT_S)

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
