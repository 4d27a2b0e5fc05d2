"""The time of a step over all records of a group, as an expression for `group_by(...).agg`."""

import polars as pl

IS_GOOD = (pl.col("status") == "ok") & pl.col("step_s").is_not_null()
IS_PREDICTED = pl.col("origin") == "predicted"
IS_STEP = pl.col("scope") == ""


def pooled_step_s() -> pl.Expr:
    """Return the step time of a group: the median of all samples of its successful records.

    Without samples it is the median of repeats (stated values that are no copies), and without
    repeats the value of the last record. A group with a sample or a repeat that is not above 0
    has the value of its last record, too. None where no record has a value.
    """
    # Samples of all records; without any the median of repeats; else the last record. A time of 0
    # (of an op that rests) makes pooling meaningless, so then the last record counts, too.
    has_samples = IS_GOOD & (pl.col("samples_n").fill_null(0) > 0)
    is_repeat = IS_GOOD & ~has_samples & ~IS_PREDICTED & pl.col("duplicate_of").is_null()
    last_s = pl.col("step_s").filter(IS_GOOD | IS_PREDICTED).last()
    smallest_s = pl.coalesce("step_s_min", "step_s").filter(has_samples).min()
    sampled_s = pl.col("samples").filter(has_samples).explode().median()
    repeated_s = pl.col("step_s").filter(is_repeat)
    has_several_repeats = is_repeat.sum() > 1
    return (
        pl.when(has_samples.any())
        .then(pl.when(smallest_s > 0).then(sampled_s).otherwise(last_s))
        .when(has_several_repeats & (repeated_s.min() > 0))
        .then(repeated_s.median())
        .otherwise(last_s)
    )
