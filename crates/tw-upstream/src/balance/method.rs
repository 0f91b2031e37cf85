//! Load balancing methods, and what each of them measures and needs.

/// Load balancing method of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BalanceMethod {
    /// Weighted round robin.
    #[default]
    RoundRobin,
    /// Fewest connections in relation to the weight.
    LeastConn,
    /// Hash of the client's network.
    IpHash,
    /// Hash of a text.
    Hash,
    /// Consistent hash of a text: few texts move when a peer is added or removed (ketama).
    HashConsistent,
    /// Consistent hash of a text with a bounded load: no peer has more of the requests under way than its share, times a factor.
    HashBounded(BalanceFactor),
    /// Random; or the better one of two random peers.
    Random(Option<RandomTwo>),
    /// Least time for its connections and its weight.
    LeastTime(LeastTime),
}

/// Comparison of `random two`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RandomTwo {
    /// Fewer connections in relation to the weight.
    LeastConn,
    /// Less time.
    LeastTime(LeastTime),
}

/// Key that a method needs ([`BalanceKey`](crate::BalanceKey)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// Nothing.
    Nothing,
    /// The address of the client.
    Client,
    /// The text of the directive.
    Text,
}

/// Load of a peer in relation to its share, in percent: more than 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceFactor(pub(super) u64);

impl BalanceFactor {
    /// A factor from 101 to 10000 percent.
    pub fn new(percent: u64) -> Option<Self> {
        (101..=10_000).contains(&percent).then_some(Self(percent))
    }
}

/// Measure of `least_time`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeastTime {
    /// Span that is measured.
    pub by: TimeKind,
    /// Includes requests in flight, whose time is not known yet.
    pub inflight: bool,
}

/// A span of a request, from when its peer is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeKind {
    /// To the connection.
    Connect,
    /// To the head, or the first byte, of the response.
    Header,
    /// To its last byte.
    LastByte,
}

impl LeastTime {
    pub(crate) fn is_by_connect(self) -> bool {
        self.by == TimeKind::Connect
    }

    pub(crate) fn is_by_header(self) -> bool {
        self.by == TimeKind::Header
    }
}

impl BalanceMethod {
    /// Kind of key that the method needs from a request.
    pub fn key_kind(self) -> KeyKind {
        match self {
            BalanceMethod::IpHash => KeyKind::Client,
            BalanceMethod::Hash | BalanceMethod::HashConsistent | BalanceMethod::HashBounded(_) => {
                KeyKind::Text
            }
            BalanceMethod::RoundRobin
            | BalanceMethod::LeastConn
            | BalanceMethod::Random(_)
            | BalanceMethod::LeastTime(_) => KeyKind::Nothing,
        }
    }

    /// Returns true if the method places peers on a ring of points, which are computed for each list of peers.
    pub fn has_ring(self) -> bool {
        matches!(self, BalanceMethod::HashConsistent | BalanceMethod::HashBounded(_))
    }

    /// Measure that the method needs, if it compares times.
    pub(crate) fn measure(self) -> Option<LeastTime> {
        match self {
            BalanceMethod::LeastTime(measure)
            | BalanceMethod::Random(Some(RandomTwo::LeastTime(measure))) => Some(measure),
            _ => None,
        }
    }
}
