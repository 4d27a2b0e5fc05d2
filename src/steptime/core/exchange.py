"""Facts of a gradient exchange that its prediction and its measurement share."""

BUCKET_BYTES = 25 * 2**20  # torch.nn.parallel.DistributedDataParallel: bucket_cap_mb, in MiB


def ring_messages(processes: int) -> tuple[int, float]:
    """Return the messages of a ring all-reduce that follow each other, and the share in each.

    Each of n processes passes 1/n of the bytes on, n - 1 times to add and n - 1 to gather: the
    least traffic that is possible (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce
    algorithms for clusters of workstations"). Four processes: 6 messages of a quarter.
    """
    # n - 1 messages reduce the shares of 1 / n, n - 1 more gather them.
    message_count = 2 * (processes - 1)
    share_per_message = 1 / processes
    return message_count, share_per_message
