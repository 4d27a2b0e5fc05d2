"""The time of a step over all records of a group, as an expression for `group_by(...).agg`."""

import polars as pl

IS_GOOD = (pl.col("status") == "ok") & pl.col("step_s").is_not_null()
IS_PREDICTED = pl.col("origin") == "predicted"
IS_STEP = pl.col("scope") == ""
HAS_SAMPLES = IS_GOOD & (pl.col("samples_n").fill_null(0) > 0)
IS_ORIGINAL = ~IS_PREDICTED & pl.col("duplicate_of").is_null()
IS_REPEAT = IS_GOOD & ~HAS_SAMPLES & IS_ORIGINAL  # a stated value, measured or published


def pooled_step_s() -> pl.Expr:
    """Return the step time of a group: the median of all samples of its successful records.

    Without samples it is the median of repeats (stated values that are no copies), and without
    repeats the value of the last record. A group with a sample or a repeat that is not above 0
    has the value of its last record, too. None where no record has a value.
    """
    last_s = pl.col("step_s").filter(IS_GOOD | IS_PREDICTED).last()
    # A time of 0 (of an op that rests) makes pooling meaningless, so then the last record counts.
    smallest_s = pl.coalesce("step_s_min", "step_s").filter(HAS_SAMPLES).min()
    median_sample_s = pl.col("samples").filter(HAS_SAMPLES).explode().median()
    sampled_s = pl.when(smallest_s > 0).then(median_sample_s).otherwise(last_s)
    repeats_s = pl.col("step_s").filter(IS_REPEAT)
    has_several_repeats = IS_REPEAT.sum() > 1
    return (
        pl.when(HAS_SAMPLES.any())
        .then(sampled_s)
        .when(has_several_repeats & (repeats_s.min() > 0))
        .then(repeats_s.median())
        .otherwise(last_s)
    )
