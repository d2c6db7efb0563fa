//! The system's ping(8): what it is asked and what it says.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

/// A series of echo requests.
#[derive(Clone, Debug)]
pub(crate) struct Ping {
    /// To whom.
    pub(crate) target: IpAddr,
    /// How many.
    pub(crate) count: u32,
    /// The time between two.
    pub(crate) interval: Duration,
    /// Bytes behind the ICMP header.
    pub(crate) payload_bytes: usize,
    /// Whether routers and the own host may not fragment.
    pub(crate) dont_fragment: bool,
    /// Whether it sends all requests whatever is reported meanwhile; otherwise it ends with the
    /// first error, and waits longer for answers.
    pub(crate) goes_on: bool,
    /// The interface to send from, needed for groups and link-local addresses.
    pub(crate) interface: &'static str,
}

/// The length of the ICMP header, the same in both families.
const ICMP_BYTES: usize = 8;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
/// What ping waits for the last answer before it gives up.
const ANSWER_MAX: Duration = Duration::from_secs(5);

impl Ping {
    /// One plain request.
    pub(crate) fn once(target: IpAddr) -> Self {
        Self {
            target,
            count: 1,
            interval: Duration::from_millis(1),
            payload_bytes: 56,
            dont_fragment: false,
            goes_on: false,
            interface: "ib0",
        }
    }

    /// The largest payload whose packet is at most `mtu` long.
    pub(crate) fn payload_bytes_max(target: IpAddr, mtu: usize) -> usize {
        let ip_bytes = match target {
            IpAddr::V4(_) => IPV4_BYTES,
            IpAddr::V6(_) => IPV6_BYTES,
        };
        mtu.saturating_sub(ip_bytes + ICMP_BYTES)
    }

    /// The time after which ping ends in any case.
    pub(crate) fn time_max(&self) -> Duration {
        self.interval * self.count + ANSWER_MAX
    }

    /// The arguments of ping(8).
    pub(crate) fn arguments(&self) -> Vec<String> {
        let family = match self.target {
            IpAddr::V4(_) => "-4",
            IpAddr::V6(_) => "-6",
        };
        let fragmentation = if self.dont_fragment { "do" } else { "dont" };
        let mut arguments = vec![
            // No names, a time stamp per answer, no answers from the own loop.
            family.to_owned(),
            "-n".to_owned(),
            "-D".to_owned(),
            "-L".to_owned(),
        ];
        let options = [
            ("-I", self.interface.to_owned()),
            ("-c", self.count.to_string()),
            ("-i", format!("{:.3}", self.interval.as_secs_f64())),
            ("-s", self.payload_bytes.to_string()),
            ("-M", fragmentation.to_owned()),
            if self.goes_on {
                ("-W", "1".to_owned())
            } else {
                ("-w", self.time_max().as_secs().to_string())
            },
        ];
        for (option, value) in options {
            arguments.extend([option.to_owned(), value]);
        }
        arguments.push(self.target.to_string());
        arguments
    }
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Answer {
    /// Who answered.
    pub(crate) from: IpAddr,
    /// Which request, from 1.
    pub(crate) sequence: u32,
    /// When, since 1970.
    pub(crate) at: Duration,
}

/// What ping said.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Report {
    /// Requests.
    pub(crate) sent: u32,
    /// Answers, without duplicates.
    pub(crate) received: u32,
    /// Every answer, duplicates included, in order.
    pub(crate) answers: Vec<Answer>,
    /// `min/avg/max/mdev` in milliseconds, if it measured.
    pub(crate) round_trip: Option<String>,
    /// Errors that the own host reported.
    pub(crate) errors: Vec<String>,
    /// ICMP messages that the packet was too large, by what they said of the MTU.
    pub(crate) too_big: Vec<String>,
}

impl Report {
    /// Reads the output of ping(8) of iputils.
    pub(crate) fn parse(text: &str) -> Self {
        let mut report = Self::default();
        for line in text.lines() {
            if let Some(answer) = parse_answer(line) {
                report.answers.push(answer);
            } else if let Some((sent, received)) = parse_summary(line) {
                (report.sent, report.received) = (sent, received);
            } else if let Some(times) = line.strip_prefix("rtt min/avg/max/mdev = ") {
                let times = times.split(',').next().unwrap_or(times);
                report.round_trip = Some(times.to_owned());
            } else if let Some(message) = parse_too_big(line) {
                report.too_big.push(message);
            } else if let Some(error) = line.strip_prefix("ping: ") {
                report.errors.push(error.to_owned());
            }
        }
        report
    }

    /// Which of the first `count` requests were answered, by `from` if that is given.
    ///
    /// With a time limit ping goes on until it has `count` answers: where they are slow it sends
    /// more requests than that, and what is on its way when it ends is not lost.
    pub(crate) fn answered(&self, count: u32, from: Option<IpAddr>) -> BTreeSet<u32> {
        let is_wanted = |answer: &&Answer| {
            answer.sequence <= count && from.is_none_or(|from| from == answer.from)
        };
        self.answers.iter().filter(is_wanted).map(|answer| answer.sequence).collect()
    }

    /// Whether the first `count` requests were answered, and nothing twice.
    pub(crate) fn is_complete(&self, count: u32) -> bool {
        let all: BTreeSet<u32> = self.answers.iter().map(|answer| answer.sequence).collect();
        self.answered(count, None).len() == count as usize && all.len() == self.answers.len()
    }

    /// The time from `event`, since 1970, to the first answer after it.
    pub(crate) fn recovery_after(&self, event: Duration) -> Option<Duration> {
        let later = self.answers.iter().filter_map(|answer| answer.at.checked_sub(event));
        later.min()
    }

    /// The most requests in a row, of the first `count`, that were not answered.
    pub(crate) fn longest_loss(&self, count: u32) -> u32 {
        let answered = self.answered(count, None);
        let ends = answered.iter().copied().chain([count + 1]);
        let (longest, _) = ends.fold((0, 0), |(longest, before), sequence| {
            (longest.max(sequence - before - 1), sequence)
        });
        longest
    }

    /// The longest time without an answer, that ends within `window` after `event`.
    pub(crate) fn longest_gap(&self, event: Duration, window: Duration) -> Duration {
        let times: Vec<Duration> = self.answers.iter().map(|answer| answer.at).collect();
        let gaps = times.windows(2).filter_map(|pair| match *pair {
            [from, to] if to >= event && to <= event + window => to.checked_sub(from),
            _ => None,
        });
        // Nothing that ends is a gap that goes on.
        gaps.max().unwrap_or(Duration::MAX)
    }

    /// One line for people, about all requests.
    pub(crate) fn summary(&self) -> String {
        self.describe(self.received, self.sent)
    }

    /// One line for people, about the first `count` requests.
    pub(crate) fn summary_of(&self, count: u32) -> String {
        let answered = self.answered(count, None).len();
        self.describe(u32::try_from(answered).unwrap_or(count), count)
    }

    fn describe(&self, received: u32, sent: u32) -> String {
        let lost = sent.saturating_sub(received);
        let mut text = format!("{received} of {sent} answered, {lost} lost");
        if let Some(times) = &self.round_trip {
            text.push_str(", min/avg/max/mdev ");
            text.push_str(times);
        }
        if let Some(error) = self.errors.first() {
            text.push_str(", ");
            text.push_str(error);
        }
        text
    }
}

/// `[1700000000.123456] 64 bytes from 10.77.0.2: icmp_seq=1 ttl=64 time=0.2 ms`. An IPv6 address
/// may carry a zone and is followed by `: icmp_seq` as well.
fn parse_answer(line: &str) -> Option<Answer> {
    let (stamp, rest) = line.strip_prefix('[')?.split_once("] ")?;
    let (_, rest) = rest.split_once(" bytes from ")?;
    let (from, rest) = rest.split_once(": icmp_seq=")?;
    let (sequence, _) = rest.split_once(' ')?;
    let from = from.split('%').next()?.parse().ok()?;
    let at = Duration::try_from_secs_f64(stamp.parse().ok()?).ok()?;
    Some(Answer { from, sequence: sequence.parse().ok()?, at })
}

/// `From 10.77.0.2 icmp_seq=1 Frag needed and DF set (mtu = 2044)`, after a time stamp, and for
/// IPv6 `Packet too big: mtu=2044`.
fn parse_too_big(line: &str) -> Option<String> {
    let message = line.split_once(" icmp_seq=")?.1.split_once(' ')?.1;
    let is_too_big = ["Frag needed", "Packet too big"].iter().any(|&it| message.starts_with(it));
    is_too_big.then(|| message.trim_end_matches(')').to_owned())
}

/// `100 packets transmitted, 99 received, +1 duplicates, 1% packet loss, time 99ms`.
fn parse_summary(line: &str) -> Option<(u32, u32)> {
    let (sent, rest) = line.split_once(" packets transmitted, ")?;
    let (received, _) = rest.split_once(" received")?;
    Some((sent.parse().ok()?, received.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_summary_are_read() {
        let report = Report::parse(
            "PING 10.77.0.2 (10.77.0.2) from 10.77.0.1 ib0: 56(84) bytes of data.\n\
             [1700000000.250000] 64 bytes from 10.77.0.2: icmp_seq=1 ttl=64 time=0.214 ms\n\
             [1700000000.500000] 64 bytes from 10.77.0.2: icmp_seq=2 ttl=64 time=0.1 ms (DUP!)\n\
             \n\
             --- 10.77.0.2 ping statistics ---\n\
             3 packets transmitted, 2 received, +1 duplicates, 33% packet loss, time 2ms\n\
             rtt min/avg/max/mdev = 0.018/0.022/0.027/0.004 ms, ipg/ewma 0.1/0.2 ms\n",
        );
        assert_eq!((report.sent, report.received), (3, 2));
        assert_eq!(report.answers.len(), 2);
        assert_eq!(report.answers[1].at, Duration::from_millis(1_700_000_000_500));
        assert_eq!(report.answers[1].from, "10.77.0.2".parse::<IpAddr>().unwrap());
        assert_eq!(report.answers[1].sequence, 2);
        assert_eq!(
            report.summary(),
            "2 of 3 answered, 1 lost, min/avg/max/mdev 0.018/0.022/0.027/0.004 ms"
        );
    }

    fn answers(sequences: &[u32]) -> Report {
        let answer = |&sequence| Answer {
            from: "10.77.0.2".parse().unwrap(),
            sequence,
            at: Duration::from_millis(u64::from(sequence) * 10),
        };
        Report { answers: sequences.iter().map(answer).collect(), ..Report::default() }
    }

    #[test]
    fn what_was_sent_beyond_the_count_is_not_lost() {
        let report = Report { sent: 4, received: 3, ..answers(&[1, 2, 3]) };
        assert!(report.is_complete(3));
        assert_eq!(report.summary_of(3), "3 of 3 answered, 0 lost");
    }

    #[test]
    fn a_gap_is_a_loss_whatever_came_later() {
        let report = Report { sent: 4, received: 3, ..answers(&[1, 3, 4]) };
        assert!(!report.is_complete(3));
        assert_eq!(report.summary_of(3), "2 of 3 answered, 1 lost");
    }

    #[test]
    fn an_answer_that_comes_twice_is_a_failure() {
        assert!(!answers(&[1, 2, 2, 3]).is_complete(3));
    }

    #[test]
    fn answers_of_others_do_not_count() {
        let report = answers(&[1, 2]);
        let of = |address: &str| report.answered(2, Some(address.parse().unwrap())).len();
        assert_eq!((of("10.77.0.2"), of("10.77.0.3")), (2, 0));
    }

    #[test]
    fn recovery_is_the_first_answer_after_the_event() {
        let report = answers(&[10, 25, 26]);
        let recovery = |millis| report.recovery_after(Duration::from_millis(millis));
        assert_eq!(recovery(200), Some(Duration::from_millis(50)));
        assert_eq!(recovery(300), None);
    }

    #[test]
    fn the_longest_loss_may_stand_at_either_end() {
        assert_eq!(answers(&[1, 2, 3]).longest_loss(3), 0);
        assert_eq!(answers(&[3, 4, 7]).longest_loss(7), 2);
        assert_eq!(answers(&[1, 2]).longest_loss(7), 5);
        assert_eq!(answers(&[]).longest_loss(7), 7);
    }

    #[test]
    fn the_longest_gap_ends_after_the_event() {
        let report = answers(&[10, 40, 41, 45, 60]);
        let window = Duration::from_millis(100);
        let gap = |event| report.longest_gap(Duration::from_millis(event), window);
        assert_eq!(gap(405), Duration::from_millis(40));
        assert_eq!(gap(390), Duration::from_millis(300));
        assert_eq!(gap(550), Duration::from_millis(150));
        assert_eq!(gap(700), Duration::MAX);
    }

    #[test]
    fn a_zone_is_no_part_of_the_address() {
        let answer = parse_answer("[1.5] 64 bytes from fe80::2%ib0: icmp_seq=1 ttl=64 time=1 ms");
        assert_eq!(answer.unwrap().from, "fe80::2".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn a_local_error_is_kept() {
        let report = Report::parse("ping: local error: message too long, mtu=2044\n");
        assert_eq!(report.errors, ["local error: message too long, mtu=2044"]);
        assert!(!report.is_complete(1));
    }

    #[test]
    fn messages_of_the_mtu_are_kept() {
        let report = Report::parse(
            "[1796058784.681446] From 10.77.0.2 icmp_seq=1 Frag needed and DF set (mtu = 2044)\n\
             [1796058784.781446] From fd00:77::2 icmp_seq=1 Packet too big: mtu=2044\n\
             From 10.77.0.2 icmp_seq=2 Destination Host Unreachable\n",
        );
        let expected = ["Frag needed and DF set (mtu = 2044", "Packet too big: mtu=2044"];
        assert_eq!(report.too_big, expected);
    }

    #[test]
    fn the_largest_payload_fills_the_mtu() {
        let payload = |target: &str| Ping::payload_bytes_max(target.parse().unwrap(), 2044);
        assert_eq!(payload("10.77.0.2"), 2016);
        assert_eq!(payload("fd00:77::2"), 1996);
    }
}
