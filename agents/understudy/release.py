"""The version of both distributions, and the release that messages name. It is written here and nowhere else.

Both pyproject.toml files read it for the build. It belongs to the hook, because an exported copy of the hook has
no metadata of a distribution.
"""

RELEASE = "0.3.0"
