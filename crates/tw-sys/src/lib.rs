//! Calls of the kernel and of the allocator that no safe library offers. The only crate with unsafe code:
//! each block is one call with a SAFETY line, and everything public is safe to use in any order.

pub mod cpu_limit;
pub mod daemon;
pub mod datagram;
pub mod epoll;
pub mod exit;
pub mod file;
pub mod heap;
pub mod inherit;
pub mod memory;
pub mod nr;
pub mod program;
pub mod rsa;
pub mod secret;
pub mod signal;
pub mod sigsys;
pub mod sockopt;
pub mod stack;
pub mod uring;
pub mod usage;
