//! Groups of upstream servers: names, health checks, the API, queues, sticky sessions.

mod api;
mod health_check;
mod health_check_apps;
mod names;
mod openapi;
mod queue;
mod resolver;
mod retry_budget;
mod sticky;
