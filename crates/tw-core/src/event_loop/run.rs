//! Life of a loop: it accepts connections for an [`Application`], and replaces its generation at a reload.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::task::JoinHandle;
use tw_net::ListenSocket;
use tw_rt::watch::Subject;
use tw_rt::{Inbox, MemoryRelease};

use super::accepting::Accepting;
use super::application::{Application, LoopCommand};
use super::counts::{self, ClientLookup, Counts};
use super::loop_core::LoopCore;
use super::running::Running;

/// Removes the loop from those that its siblings see, however it ends.
struct Present(Rc<LoopCore>);

impl Drop for Present {
    fn drop(&mut self) {
        self.0.give_up_turn();
        self.0.leave_siblings();
    }
}

/// Runs a loop: serves `generation` until a command replaces it. Dropping the future closes every connection.
///
/// Called on the loop's thread before the loop guard is on; the future does the rest.
pub fn run<A: Application>(
    index: usize,
    counts: Arc<Counts>,
    generation: A::Generation,
    sockets: Vec<ListenSocket>,
    commands: Inbox<LoopCommand<A::Generation>>,
) -> impl Future<Output = ()> {
    Accepting::prepare(&sockets);
    serve(Running::<A>::new(index, counts, generation), sockets, commands)
}

async fn serve<A: Application>(
    running: Running<A>,
    sockets: Vec<ListenSocket>,
    mut commands: Inbox<LoopCommand<A::Generation>>,
) {
    let Some(LoopCommand::Start) = commands.recv().await else { return };
    let here: Rc<dyn ClientLookup> = running.core.clone();
    counts::set_current_loop(Rc::downgrade(&here));
    drop(here);
    let _present = Present(running.core.clone());
    running.tally.generation.set(running.process().id);
    let taking_datagrams = running.start_taking_datagrams();
    running.listen(sockets);
    // The accepting tasks run first, so that siblings which learn of this loop find it at work.
    tw_rt::yield_now().await;
    running.join_siblings(commands.stats());
    let taking_over = Subject { kind: "accept", id: 0 };
    let mut taking_over = tw_rt::spawn_local(taking_over, running.clone().take_over_all());
    let app = running.app.clone();
    let mut sweeping = tw_rt::spawn_local(Subject { kind: "files", id: 0 }, async move {
        let mut release = MemoryRelease::default();
        loop {
            let next = app.sweep();
            release.run_if_due();
            tw_rt::time::sleep(next.min(MemoryRelease::interval())).await;
        }
    });
    let mut background_tasks = running.start_background_tasks();
    loop {
        let has_ended = |cx: &mut Context<'_>| {
            is_over(&mut sweeping, cx)
                || is_over(&mut taking_over, cx)
                || background_tasks.poll_ended(cx).is_ready()
                || running.has_stopped_accepting(cx)
        };
        let Some(command) = next(&mut commands, has_ended).await else { return };
        match command {
            // The loop has started already.
            LoopCommand::Start => {}
            LoopCommand::Generation(generation, sockets) => {
                running.set_generation(generation);
                background_tasks = running.start_background_tasks();
                running.app.close_files();
                running.listen(sockets);
            }
            LoopCommand::CloseFiles => running.app.close_files(),
            LoopCommand::ReceiverChanged => running.wake_receivers(),
            LoopCommand::TakeOver(session) => running.app.take_over(session),
            // Only a loop that has got `Quit` hands sessions over.
            LoopCommand::HandOver(_) => {}
            LoopCommand::Quit(phase) => {
                drop(background_tasks);
                running.set_handover(phase);
                running.connections.tasks.stop();
                running.stop_listening().await;
                running.leave_siblings();
                running.take_over_rest().await;
                drained(&running, &mut commands).await;
                running.close_datagram_queue(taking_datagrams).await;
                return;
            }
        }
    }
}

/// Next command; `None` when there will be none, or when a task that must not end has panicked. The loop then ends
/// instead of serving nothing, and another one takes its place.
async fn next<O: Send + 'static>(
    commands: &mut Inbox<O>,
    mut has_ended: impl FnMut(&mut Context<'_>) -> bool,
) -> Option<O> {
    let mut command = pin!(commands.recv());
    poll_fn(|cx| if has_ended(cx) { Poll::Ready(None) } else { command.as_mut().poll(cx) }).await
}

fn is_over(task: &mut JoinHandle<()>, cx: &mut Context<'_>) -> bool {
    Pin::new(task).poll(cx).is_ready()
}

/// Waits until no connection is left, or the sender of commands is gone: then the loop ends at once.
async fn drained<G: Send + 'static>(core: &LoopCore, commands: &mut Inbox<LoopCommand<G>>) {
    let tasks = &core.connections.tasks;
    let mut drained = pin!(tasks.drained());
    let mut abandoned = pin!(async {
        while let Some(command) = commands.recv().await {
            match command {
                LoopCommand::HandOver(phase) => {
                    core.set_handover(phase);
                    // Sessions look at it when they are woken.
                    tasks.stop();
                }
                LoopCommand::ReceiverChanged => core.wake_receivers(),
                _ => {}
            }
        }
    });
    poll_fn(|cx| match drained.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => abandoned.as_mut().poll(cx),
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_loop::HandoverPhase;

    #[test]
    fn loop_ends_when_one_of_its_own_tasks_panics() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let event_loop = tw_rt::LoopThread::<LoopCommand<()>>::start(
            tw_rt::LoopOptions::new(0),
            |mut commands| async move {
                let spawn = |panics: bool| {
                    tw_rt::spawn_local(Subject { kind: "test", id: 0 }, async move {
                        assert!(!panics, "expected");
                        std::future::pending().await
                    })
                };
                let mut tasks = [spawn(false), spawn(false)];
                sender
                    .send(matches!(
                        next(&mut commands, |cx| tasks.iter_mut().any(|task| is_over(task, cx))).await,
                        Some(LoopCommand::Quit(HandoverPhase::Closed))
                    ))
                    .unwrap();
                let mut tasks = [spawn(false), spawn(true)];
                sender
                    .send(
                        next(&mut commands, |cx| tasks.iter_mut().any(|task| is_over(task, cx)))
                            .await
                            .is_none(),
                    )
                    .unwrap();
            },
        )
        .unwrap();
        assert!(event_loop.send(LoopCommand::Quit(HandoverPhase::Closed)).is_ok());
        assert_eq!([receiver.recv(), receiver.recv()], [Ok(true), Ok(true)]);
        event_loop.join().unwrap();
    }
}
