//! Load balancing methods, one file each, with nginx's sequences. All of them choose among the peers of one tier
//! under the lock of the group, and leave what is common to [`Group::select`](crate::Group::select).

mod bounded;
mod choose;
mod consistent_hash;
mod hash;
mod ip_hash;
mod least_conn;
mod least_time;
pub(crate) mod method;
mod random;
pub(crate) mod ring;
mod round_robin;
mod view;

pub use method::{BalanceFactor, BalanceMethod, KeyKind, LeastTime, RandomTwo, TimeKind};
pub(crate) use ring::LIMITS;
