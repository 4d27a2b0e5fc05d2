"""What this machine is, and what it lacks."""

from steptime.core.question import question
from steptime.core.table import Answer, facts
from steptime.measure.doctor import doctor_table, examine


@question(long="looking for what is installed")
def doctor() -> Answer:
    """Show what this machine is, what it lacks, and how to get it."""
    report = examine()
    notes = [f"! {problem}" for problem in report["problems"]]
    return Answer(report, [facts("this machine", "", doctor_table(report))], notes)
