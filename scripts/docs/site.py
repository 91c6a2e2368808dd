"""What the site consists of: its pages in order, its languages, and the configuration of the generator.

The pages lie under `docs/` in English. `docs/zh/` holds translations under the same names; a page without a translation
is shown in English on the Chinese site. `build.GENERATED` names the pages that this package writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "docs"
IMPORT_ROOTS = ("recovery", "checkpoint", "controller")


@dataclass(frozen=True)
class Language:
    """One language of the site. `folder` is its place below the site's root: "" for the default language."""

    code: str
    name: str
    folder: str


ENGLISH = Language("en", "English", "")
CHINESE = Language("zh", "中文", "zh")
LANGUAGES = (ENGLISH, CHINESE)

# Section titles in every language, and the pages of each section in reading order.
SECTIONS: tuple[tuple[dict[str, str], tuple[str, ...]], ...] = (
    ({"en": "Start", "zh": "开始"}, ("index.md", "quickstart.md")),
    (
        {"en": "Guides", "zh": "指南"},
        (
            "guides/training.md",
            "guides/clusters.md",
            "guides/services.md",
            "guides/schedules.md",
            "guides/sweeps.md",
            "guides/dashboard.md",
            "guides/checkpoints.md",
            "guides/buckets.md",
            "guides/machines.md",
            "guides/containers.md",
            "guides/from-skypilot.md",
            "guides/python.md",
            "guides/enter-a-job.md",
            "guides/simulate.md",
            "guides/hosting.md",
            "guides/backup.md",
            "guides/metrics.md",
            "guides/notifications.md",
            "guides/users.md",
            "guides/several-controllers.md",
            "guides/troubleshooting.md",
        ),
    ),
    (
        {"en": "Clouds", "zh": "云"},
        (
            "guides/clouds/local.md",
            "guides/clouds/aws.md",
            "guides/clouds/gcp.md",
            "guides/clouds/azure.md",
            "guides/clouds/kubernetes.md",
        ),
    ),
    (
        {"en": "Concepts", "zh": "概念"},
        (
            "concepts/recovery.md",
            "concepts/guarantees.md",
            "concepts/checkpoints.md",
            "concepts/policies.md",
            "concepts/fairness.md",
            "concepts/security.md",
            "concepts/performance.md",
        ),
    ),
    (
        {"en": "Reference", "zh": "参考"},
        (
            "reference/cli.md",
            "reference/task-yaml.md",
            "reference/configuration.md",
            "reference/environment.md",
            "reference/home-directory.md",
            "reference/states.md",
            "reference/api.md",
            "reference/http-api.md",
            "reference/agent-protocol.md",
            "reference/retention.md",
            "reference/python/checkpoint.md",
            "reference/python/sdk.md",
            "reference/glossary.md",
        ),
    ),
    (
        {"en": "Contributing", "zh": "参与开发"},
        (
            "contributing/architecture.md",
            "contributing/testing.md",
            "contributing/simulation.md",
            "contributing/adding-a-cloud.md",
            "contributing/migrations.md",
            "contributing/release.md",
            "verified.md",
            "adr/README.md",
        ),
    ),
)

PAGES = tuple(page for _, pages in SECTIONS for page in pages)
# The pages that every translation has; the rest falls back to English.
TRANSLATED = ("index.md", "quickstart.md", "guides/training.md", "guides/checkpoints.md")


def config(language: Language, sources: str, target: str) -> dict[str, Any]:
    """The generator's configuration (an `mkdocs.yml` as a mapping) for one language.

    `sources` and `target`: folders, relative to that of the configuration file; the generator takes no others.
    """
    others = [{"name": other.name, "link": _relative(language, other), "lang": other.code} for other in LANGUAGES]
    return {
        "site_name": "Perdure",
        "docs_dir": sources,
        "site_dir": target,
        "use_directory_urls": False,
        "theme": {
            "name": "material",
            "variant": "modern",
            "language": language.code,
            "font": False,  # no request leaves the site
            "features": ["navigation.sections", "navigation.footer", "content.code.copy", "toc.follow"],
            "palette": [
                {
                    "media": "(prefers-color-scheme: light)",
                    "scheme": "default",
                    "toggle": {"icon": "lucide/sun", "name": "Dark mode"},
                },
                {
                    "media": "(prefers-color-scheme: dark)",
                    "scheme": "slate",
                    "toggle": {"icon": "lucide/moon", "name": "Light mode"},
                },
            ],
        },
        "nav": [{titles[language.code]: list(pages)} for titles, pages in SECTIONS],
        "extra": {"alternate": others, "generator": False},
        "extra_css": ["assets/site.css"],
        "extra_javascript": ["assets/search.js"],
        "markdown_extensions": [
            "tables",
            "admonition",
            "attr_list",
            "md_in_html",
            {"toc": {"permalink": True}},
            "pymdownx.superfences",
            "pymdownx.details",
        ],
        "plugins": [
            {
                "mkdocstrings": {
                    "handlers": {
                        "python": {
                            "paths": [str(ROOT / root) for root in IMPORT_ROOTS],
                            "options": {
                                "show_source": False,
                                "show_root_heading": True,
                                "show_root_full_path": False,
                                "heading_level": 2,
                                "separate_signature": True,
                                "signature_crossrefs": False,
                            },
                        }
                    }
                }
            }
        ],
    }


def _relative(here: Language, there: Language) -> str:
    """The link from the root of one language's site to that of another."""
    up = "../" if here.folder else "./"
    return f"{up}{there.folder}/" if there.folder else up
