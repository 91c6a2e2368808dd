"""Clients of AWS's services, made when first used. One attempt per call: the caller repeats, as data."""

from __future__ import annotations

import importlib.util
import threading
from typing import TYPE_CHECKING, Any

from perdure.controller.clock import Clock
from perdure.controller.clouds.aws.settings import AwsSettings

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

HOME_REGION = "us-east-1"
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
MOST_CONNECTIONS = 32
LOOK_FOR_CREDENTIALS_AGAIN_S = 30.0


class Connections:
    """Shared by threads: clients may be, and making one is locked."""

    def __init__(self, settings: AwsSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._session: Any = None
        self._clients: dict[tuple[str, str], Any] = {}
        self._problem: str | None = None
        self._looked_at: float | None = None
        self._has_credentials = False

    def ec2(self, region: str) -> EC2Client:
        client: EC2Client = self._client("ec2", region)
        return client

    def ssm(self, region: str) -> Any:
        return self._client("ssm", region)

    def pricing(self) -> Any:
        """Of the Price List service, which tells of all regions."""
        return self._client("pricing", HOME_REGION)

    def sqs(self, region: str) -> Any:
        return self._client("sqs", region)

    def fis(self, region: str) -> Any:
        return self._client("fis", region)

    def iam(self, region: str) -> Any:
        return self._client("iam", region)

    def service(self, name: str, region: str) -> Any:
        """Of the services that only `check` asks."""
        return self._client(name, region)

    def unusable(self) -> str | None:
        """Why no call can be made, and what to do. Looks for credentials now and then, until there are some."""
        if importlib.util.find_spec("boto3") is None:
            return "boto3 is not installed: pip install 'perdure[aws]'"
        with self._lock:
            now = self._clock.now()
            if not self._has_credentials and (
                self._looked_at is None or now - self._looked_at >= LOOK_FOR_CREDENTIALS_AGAIN_S
            ):
                self._looked_at = now
                self._problem = self._look_for_credentials()
                self._has_credentials = self._problem is None
            return self._problem

    def _look_for_credentials(self) -> str | None:
        from botocore.exceptions import BotoCoreError

        try:
            found = self._get_session().get_credentials()
        except BotoCoreError as error:
            return f"{error}: correct aws.profile in config.yaml, or ~/.aws"
        if found is None:
            return (
                "no AWS credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, run `aws configure`, "
                "or give this machine a role"
            )
        return None

    def _get_session(self) -> Any:
        if self._session is None:
            import botocore.session

            from perdure.controller.clouds.aws import models

            self._session = botocore.session.Session(profile=self._settings.profile)
            loader = models.loader(self._session.get_config_variable("data_path"))
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
                        read_timeout=ANSWER_TIMEOUT_S,
                        max_pool_connections=MOST_CONNECTIONS,
                    ),
                )
            return self._clients[service, region]
