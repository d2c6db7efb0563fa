//! What the kernel of a host counts, by nstat(8).

use std::collections::BTreeMap;

/// Counters by the names of nstat(8).
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct KernelCounters(BTreeMap<String, u64>);

impl KernelCounters {
    /// The arguments of nstat(8): since the namespace was made, and without a history.
    pub(crate) const ARGUMENTS: [&str; 1] = ["-as"];

    /// Reads the output of nstat(8). Counters that are zero are not in it.
    pub(crate) fn parse(text: &str) -> Self {
        let counters = text.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let name = words.next().filter(|word| !word.starts_with('#'))?;
            Some((name.to_owned(), words.next()?.parse().ok()?))
        });
        Self(counters.collect())
    }

    /// How much a counter has grown since `earlier`.
    pub(crate) fn since(&self, earlier: &Self, name: &str) -> u64 {
        self.of(name).saturating_sub(earlier.of(name))
    }

    fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_before_does_not_count() {
        let earlier = KernelCounters::parse(
            "#kernel\nIcmpInDestUnreachs              3                  0.0\n",
        );
        let later = KernelCounters::parse(
            "#kernel\nIcmpInDestUnreachs              5                  0.0\n\
             TcpRetransSegs                  7                  0.0\n",
        );
        assert_eq!(later.since(&earlier, "IcmpInDestUnreachs"), 2);
        assert_eq!(later.since(&earlier, "TcpRetransSegs"), 7);
        assert_eq!(later.since(&earlier, "UdpInErrors"), 0);
    }
}
