"""Data keys from AWS KMS. Needs boto3: `pip install 'nsbridge[kms]'`."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from .constants import MAX_WRAPPED_BYTES
from .errors import KeyringError
from .keyring import DataKey

KEPT_FOR_S = 5 * 60  # bounds how long a key still works after it was disabled in KMS
SEALINGS = 10_000  # requests sealed with one data key
SCOPES = 1024  # models and tenants with a cached data key


class KmsUnavailable(KeyringError):
    """Key service that throttles, cannot be reached, or has no valid credentials for."""

    is_retryable = True


class KmsKeys:
    """Keys that KMS generates for each model and tenant.

    `key_id` is the ARN or the alias of the KMS key, in the spelling of the worker's list. `client`
    is a boto3 client of KMS; without it, one is made from the environment. A data key is used for
    five minutes and 10,000 requests at most.
    """

    def __init__(
        self, key_id: str, client: Any = None, *, clock: Callable[[], float] = time.monotonic
    ):
        if client is None:
            import boto3

            client = boto3.client("kms")
        self._key_id, self._client, self._clock = key_id, client, clock
        self._lock = threading.Lock()
        self._cached: OrderedDict[tuple[str, str], tuple[DataKey, float, int]] = OrderedDict()

    def data_key(self, model: str, tenant: str) -> DataKey:
        """Returns a key for a request of this model and tenant."""
        scope, now = (model, tenant), self._clock()
        with self._lock:  # one call for all requests that wait for this key
            key, until, left = self._cached.get(scope, (None, 0.0, 0))
            if key is None or now >= until or left < 1:
                key, until, left = self._generate(model, tenant), now + KEPT_FOR_S, SEALINGS
            self._cached[scope] = key, until, left - 1
            self._cached.move_to_end(scope)
            while len(self._cached) > SCOPES:
                self._cached.popitem(last=False)
            return key

    def _generate(self, model: str, tenant: str) -> DataKey:
        context = {"app": "nsbridge", "v": "1", "model": model, "tenant": tenant}
        try:
            made = self._client.generate_data_key(
                KeyId=self._key_id, KeySpec="AES_256", EncryptionContext=context
            )
        except Exception as error:  # boto3 makes its error types at run time
            raise refused(self._key_id, error) from error
        key, wrapped = bytes(made["Plaintext"]), bytes(made["CiphertextBlob"])
        if len(key) != 32 or not 0 < len(wrapped) <= MAX_WRAPPED_BYTES:
            raise KeyringError(f"KMS made no data key of 32 bytes with `{self._key_id}`")
        return DataKey(self._key_id, key, wrapped)


DENIED = (
    "AccessDeniedException",
    "DisabledException",
    "InvalidArnException",
    "InvalidKeyUsageException",
    "KMSInvalidStateException",
    "NotFoundException",
)


def refused(key_id: str, error: Exception) -> KeyringError:
    """Returns the error for a call that KMS did not answer with a key."""
    response = getattr(error, "response", None) or {}
    code = response.get("Error", {}).get("Code") or type(error).__name__
    if code in DENIED:
        return KeyringError(f"KMS refuses the key `{key_id}`: {code}")
    return KmsUnavailable(f"KMS gives no data key with `{key_id}` now: {code}")
