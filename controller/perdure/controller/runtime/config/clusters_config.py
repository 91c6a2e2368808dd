"""Clusters: the section `clusters` of config.yaml.

```yaml
clusters: {keep_disks: true}   # stop on-demand machines instead of ending them
```
"""

from __future__ import annotations

from dataclasses import dataclass

from perdure.controller.runtime.config.config_file import ConfigFile
from perdure.controller.runtime.config.config_key import ConfigKey, child_names

CONFIG_KEYS = (
    ConfigKey(
        "clusters.keep_disks",
        "true or false",
        "false",
        "Whether `perdure stop` keeps the disks of on-demand machines; otherwise it saves the home folder to a bucket.",
    ),
)


@dataclass(frozen=True)
class ClustersConfig:
    keep_disks: bool = False  # of clusters that are launched from now on


def read_clusters_config(source: ConfigFile) -> ClustersConfig:
    """The section `clusters` of config.yaml. Raises SettingsError, which names the key."""
    keep_disks = source.section("clusters", child_names(CONFIG_KEYS, "clusters")).get("keep_disks", False)
    if not isinstance(keep_disks, bool):
        raise source.error(("clusters", "keep_disks"), f"expected true or false, found {keep_disks!r}")
    return ClustersConfig(keep_disks)
