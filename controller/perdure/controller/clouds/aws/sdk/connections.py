"""Clients of AWS's services, created on first use. They try each call once: retries are the caller's."""

from __future__ import annotations

import importlib.util
import threading
from typing import TYPE_CHECKING, Any

from perdure.controller.clouds.aws.settings import AwsSettings
from perdure.controller.runtime.clock import Clock
from perdure.sdk.connection.installation import install_command

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

HOME_REGION = "us-east-1"
CONNECT_TIMEOUT_S = 5.0
RESPONSE_TIMEOUT_S = 30.0
MAX_CONNECTIONS = 32
CREDENTIALS_RETRY_S = 30.0


class AwsConnections:
    """Thread-safe: clients are, and their creation is locked."""

    def __init__(self, settings: AwsSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._session: Any = None
        self._clients: dict[tuple[str, str], Any] = {}
        self._problem: str | None = None
        self._checked_at: float | None = None
        self._has_credentials = False

    def ec2(self, region: str) -> EC2Client:
        client: EC2Client = self._client("ec2", region)
        return client

    def ssm(self, region: str) -> Any:
        return self._client("ssm", region)

    def pricing(self) -> Any:
        """The Price List service, which covers all regions."""
        return self._client("pricing", HOME_REGION)

    def sqs(self, region: str) -> Any:
        return self._client("sqs", region)

    def fis(self, region: str) -> Any:
        return self._client("fis", region)

    def iam(self, region: str) -> Any:
        return self._client("iam", region)

    def service(self, name: str, region: str) -> Any:
        """A client of a service that only `check` uses."""
        return self._client(name, region)

    def unusable(self) -> str | None:
        """Why no call can succeed, and what to do. Searches for credentials periodically until there are some."""
        if importlib.util.find_spec("boto3") is None:
            return f"boto3 is not installed; run: {install_command('aws')}"
        with self._lock:
            now = self._clock.now()
            if not self._has_credentials and (
                self._checked_at is None or now - self._checked_at >= CREDENTIALS_RETRY_S
            ):
                self._checked_at = now
                self._problem = self._find_credentials_problem()
                self._has_credentials = self._problem is None
            return self._problem

    def _find_credentials_problem(self) -> str | None:
        from botocore.exceptions import BotoCoreError

        try:
            credentials = self._get_session().get_credentials()
        except BotoCoreError as error:
            return f"{error}: correct aws.profile in config.yaml, or ~/.aws"
        if credentials is None:
            return (
                "no AWS credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, run `aws configure`, "
                "or give this machine a role"
            )
        return None

    def _get_session(self) -> Any:
        if self._session is None:
            import botocore.session

            from perdure.controller.clouds.aws.sdk import lean_sdk

            self._session = botocore.session.Session(profile=self._settings.profile)
            loader = lean_sdk.loader(self._session.get_config_variable("data_path"))
            self._session.register_component("data_loader", loader)
        return self._session

    def _client(self, service: str, region: str) -> Any:
        with self._lock:
            if (service, region) not in self._clients:
                from botocore.config import Config

                self._clients[service, region] = self._get_session().create_client(
                    service,
                    region_name=region,
                    endpoint_url=self._settings.endpoint_url,
                    config=Config(
                        retries={"total_max_attempts": 1},
                        connect_timeout=CONNECT_TIMEOUT_S,
                        read_timeout=RESPONSE_TIMEOUT_S,
                        max_pool_connections=MAX_CONNECTIONS,
                    ),
                )
            return self._clients[service, region]
