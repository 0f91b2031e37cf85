//! Priorities of RFC 9218 as numbers of the transport, which sends streams of a higher number first, and lets streams of the same number
//! share.

use tw_http::Priority;

/// Numbers for one urgency: one for incremental streams, the others for those that are sent one after the other. A connection that has
/// had more streams (268 million) lets the further ones share.
const NUMBERS_OF_URGENCY: i32 = 1 << 28;

/// Number of a stream for the transport. Among streams of one urgency, those that are not incremental are sent before the others, in the
/// order in which the client has opened them. It is 0 for streams without a priority, as the transport has it for new ones.
pub(super) fn transport_priority(priority: Priority, stream: u64) -> i32 {
    let urgency = i32::from(Priority::default().urgency) - i32::from(priority.urgency);
    let place = match priority.incremental {
        true => 0,
        // The two low bits are the kind of the stream (RFC 9000 section 2.1).
        false => (NUMBERS_OF_URGENCY - 1).saturating_sub_unsigned(sequence_number(stream)).max(1),
    };
    urgency * NUMBERS_OF_URGENCY + place
}

/// Number of streams that the client has opened before, as far as it matters.
fn sequence_number(stream: u64) -> u32 {
    u32::try_from(stream >> 2).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streams::UNSET_PRIORITY;

    fn number(value: &str, stream: u64) -> i32 {
        transport_priority(Priority::default().with(value.as_bytes()), stream)
    }

    #[test]
    fn stream_without_a_priority_has_the_number_of_new_streams() {
        assert_eq!(transport_priority(UNSET_PRIORITY, 4000), 0);
    }

    #[test]
    fn more_urgent_streams_are_first_whatever_their_order() {
        for urgency in 0..7 {
            let least = number(&format!("u={urgency}, i"), 0);
            let next = [format!("u={}", urgency + 1), format!("u={}, i", urgency + 1)];
            assert!(next.iter().all(|value| number(value, 0) < least), "{urgency}");
        }
    }

    #[test]
    fn streams_of_one_urgency_are_ordered_unless_they_are_incremental() {
        for value in ["u=0", "u=3", "u=7"] {
            let numbers: Vec<_> = [0, 4, 8, 400, 4 << 20].map(|stream| number(value, stream)).into();
            assert!(numbers.is_sorted_by(|one, next| one > next), "{numbers:?}");
            let incremental = format!("{value}, i");
            assert_eq!(number(&incremental, 0), number(&incremental, 4 << 20));
            assert!(number(&incremental, 0) < number(value, 4 << 20));
        }
    }

    #[test]
    fn numbers_of_any_stream_keep_their_urgency() {
        for stream in [0, (4 << 28) - 8, (4 << 28) - 4, 4 << 28, 1 << 40, (1 << 62) - 4] {
            // The streams of this end have the largest number.
            assert!(number("u=0", stream) < i32::MAX);
            assert!(number("u=1", stream) < number("u=0, i", stream));
            assert!(number("u=7", stream) > number("u=7, i", stream), "{stream}");
        }
        assert_eq!(number("", 4 << 28), number("", 1 << 60), "they share");
    }
}
