//! Processes: master and worker, signals, reloads, upgrades, crashes, the sandbox, memory, service managers.

mod binary_upgrade;
mod containers;
mod control_api;
mod crash;
mod fd_exhaustion;
mod master;
mod memory_cgroup;
mod memory_lock;
mod memory_use;
mod overload;
mod packaging;
mod panics_and_hangs;
mod reload;
mod sandbox;
mod signals;
mod slow_clients;
mod systemd;
mod unresponsive_worker;
