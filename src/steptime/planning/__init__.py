"""Parallel plans: step time, memory and search for training split over many devices.

A `PlanProblem` is a network on devices with their links, a `PlanStep` a plan with its batch. One
rank's graph is priced piece by piece (`pieces`, `rank_model`); passes, stages and the end of a step
are arithmetic over the pieces (`passes`, `plan_cost`, `step_tail`); the schedule of the pipeline
gives the time of the step (`pipeline`, `pipeline_end`, `step`). A search estimates many plans
(`plan_space`, `estimate`, `search`).
"""
