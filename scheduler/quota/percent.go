package quota

// CardPercent is how much of a card a share is to gpu-manager's quota (Charge.CardPercent),
// for those who add charges up without a list of shares. cardMiB is 0 where it isn't known.
func CardPercent(cores int, mib, cardMiB int64) int64 { return cardPercent(cores, mib, cardMiB) }
