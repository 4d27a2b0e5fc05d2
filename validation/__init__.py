"""How near predictions come to what others measured, and where the shipped constants are from.

Beside the package and not shipped: it imports `steptime`, which never imports it.

    python -m validation TABLE ... [--left-out] [--stack NAME] [--json]
                                                      score published tables
    python -m validation.fit DATA [STAGE ...]         fit the shipped constants anew
    python -m validation.page WHAT PATH ... [--write] the tables of docs/validation.md
"""
