//! State of all protocols on one loop.

use std::any::Any;
use std::cell::RefCell;
use std::future::{pending, poll_fn, ready};
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tw_core::event_loop::{
    AcceptedConnection, Application, DatagramListener, HandedSession, LoopCore, PassedDatagram,
    ReceivedDatagram,
};
use tw_core::reloaded_file;
use tw_mail::MailLoop;
use tw_net::Addr;
use tw_net::listen::SocketKind;
use tw_proxy::ocsp_client::LoopOcspClient;
use tw_server::http::HttpLoop;
use tw_stream::{LoopServices, OcspQuery, StreamApplication};
use tw_tls_settings::OcspClient;

use crate::generation::Generation;

/// State of all protocols on one loop.
pub struct App {
    this: Weak<Self>,
    core: Rc<LoopCore>,
    http: Rc<HttpLoop>,
    /// `None` as long as the configuration has no `stream` block.
    stream: RefCell<Option<Rc<StreamApplication>>>,
    /// `None` as long as the configuration has no `mail` block.
    mail: RefCell<Option<Rc<MailLoop>>>,
}

/// Services of a loop that `stream` uses.
struct AppServices(Weak<App>);

impl LoopServices for AppServices {
    fn serve(&self, connection: AcceptedConnection) -> Pin<Box<dyn Future<Output = ()>>> {
        match self.0.upgrade() {
            Some(app) => Box::pin(app.serve(connection)),
            None => Box::pin(ready(())),
        }
    }

    fn query_ocsp(&self, query: OcspQuery) -> Pin<Box<dyn Future<Output = Result<Vec<u8>, String>>>> {
        let Some(app) = self.0.upgrade() else { return Box::pin(ready(Err("no OCSP client".to_owned()))) };
        let client = LoopOcspClient { event_loop: app.http.event_loop().clone(), resolving: query.resolving };
        Box::pin(async move { client.query(&query.url, &query.der, query.size_max).await })
    }

    fn http(&self) -> Option<Rc<dyn Any>> {
        let app = self.0.upgrade()?;
        Some(app.http.event_loop().clone())
    }
}

impl App {
    /// State of `stream`, with the services of the loop.
    fn new_stream(
        app: &Weak<Self>,
        core: &Rc<LoopCore>,
        generation: <StreamApplication as Application>::Generation,
    ) -> Rc<StreamApplication> {
        let stream = StreamApplication::new(core.clone(), generation);
        stream.set_services(Rc::new(AppServices(app.clone())));
        stream
    }

    /// State of `mail`, if it owns a listening address.
    fn mail_of(&self, listen: &Addr) -> Option<Rc<MailLoop>> {
        let mail = self.mail.borrow();
        mail.as_ref().filter(|mail| mail.listens_on(listen)).cloned()
    }

    /// State of `stream`, if it owns a listening address.
    fn stream_of(&self, listen: &Addr, kind: SocketKind) -> Option<Rc<StreamApplication>> {
        let stream = self.stream.borrow();
        stream.as_ref().filter(|stream| stream.listens_on(listen, kind)).cloned()
    }
}

impl App {
    /// Makes a configuration of `mail` that of new sessions. Those that run hold what they need.
    fn set_mail(&self, generation: Option<<MailLoop as Application>::Generation>) {
        let mut own = self.mail.borrow_mut();
        match (&*own, generation) {
            (Some(own), Some(generation)) => own.set_generation(generation),
            (None, Some(generation)) => *own = Some(MailLoop::new(self.core.clone(), generation)),
            (_, None) => *own = None,
        }
    }
}

impl Application for App {
    type Generation = Generation;

    fn new(core: Rc<LoopCore>, generation: Generation) -> Rc<Self> {
        let Generation { http, stream, mail, .. } = generation;
        let http = HttpLoop::new(core.clone(), http);
        let mail = RefCell::new(mail.map(|generation| MailLoop::new(core.clone(), generation)));
        Rc::new_cyclic(|app| {
            let stream = stream.map(|generation| Self::new_stream(app, &core, generation));
            Self { http, stream: RefCell::new(stream), mail, this: app.clone(), core }
        })
    }

    fn set_generation(&self, generation: Generation) {
        let Generation { http, stream, mail, .. } = generation;
        self.http.set_generation(http);
        self.set_mail(mail);
        let mut own = self.stream.borrow_mut();
        match (&*own, stream) {
            (Some(own), Some(generation)) => own.set_generation(generation),
            (None, Some(generation)) => *own = Some(Self::new_stream(&self.this, &self.core, generation)),
            // Sessions in progress hold what they need.
            (_, None) => {
                if let Some(own) = own.take() {
                    own.end_datagram_sessions();
                }
            }
        }
    }

    fn serve(self: Rc<Self>, connection: AcceptedConnection) -> impl Future<Output = ()> + 'static {
        if let Some(mail) = self.mail_of(&connection.listen) {
            return ConnectionFuture::Boxed { serving: Box::pin(mail.serve(connection)) };
        }
        match self.stream_of(&connection.listen, SocketKind::Stream) {
            None => ConnectionFuture::Http { serving: self.http.clone().serve(connection) },
            // Boxed: connections of HTTP do not carry its size.
            Some(stream) => ConnectionFuture::Boxed { serving: Box::pin(stream.serve(connection)) },
        }
    }

    fn receive(self: &Rc<Self>, listener: &Rc<DatagramListener>, datagram: &ReceivedDatagram<'_>) {
        match self.stream_of(datagram.listen, SocketKind::Datagram) {
            Some(stream) => stream.receive(listener, datagram),
            None => self.http.receive(listener, datagram),
        }
    }

    fn receive_passed(self: &Rc<Self>, datagram: PassedDatagram) {
        match self.stream_of(&datagram.listen, SocketKind::Datagram) {
            Some(stream) => stream.receive_passed(datagram),
            None => self.http.receive_passed(datagram),
        }
    }

    // Other datagram sockets are those of QUIC, whose connection IDs name the process.
    fn has_process_in_datagrams(&self, listen: &Addr) -> bool {
        self.stream_of(listen, SocketKind::Datagram).is_none()
    }

    fn has_connections_over(&self, listener: &DatagramListener) -> bool {
        self.http.has_connections_over(listener)
    }

    fn stop_connections(&self, listener: &DatagramListener) {
        self.http.stop_connections(listener);
    }

    fn take_over(self: &Rc<Self>, session: HandedSession) {
        match &*self.stream.borrow() {
            Some(stream) => stream.take_over(session),
            None => self.core.tally.datagram_sessions_not_taken_over.add(1),
        }
    }

    fn stop_receiving(&self, listener: &DatagramListener) {
        if let Some(stream) = &*self.stream.borrow() {
            stream.stop_receiving(listener);
        }
        self.http.stop_receiving(listener);
    }

    async fn run_background_tasks(self: Rc<Self>) {
        let stream = self.stream.borrow().clone();
        let mut http = pin!(self.http.clone().run_background_tasks());
        let mut stream = pin!(async {
            match stream {
                Some(stream) => stream.run_background_tasks().await,
                None => pending().await,
            }
        });
        let mail = self.mail.borrow().clone();
        let mut mail = pin!(async {
            match mail {
                Some(mail) => mail.run_background_tasks().await,
                None => pending().await,
            }
        });
        let mut files = pin!(reloaded_file::run_checks(self.core.clone()));
        // None of these futures completes; a panic in one of them ends all.
        poll_fn(|cx| {
            let all = [
                http.as_mut().poll(cx),
                stream.as_mut().poll(cx),
                mail.as_mut().poll(cx),
                files.as_mut().poll(cx),
            ];
            if all.contains(&Poll::Ready(())) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn sweep(&self) -> Duration {
        self.http.sweep()
    }

    fn close_files(&self) {
        self.http.close_files();
    }
}

pin_project! {
    /// A connection of one of the protocols while it is served.
    #[project = ConnectionFutureProjection]
    enum ConnectionFuture<H> {
        Http { #[pin] serving: H },
        Boxed { serving: Pin<Box<dyn Future<Output = ()>>> },
    }
}

impl<H: Future<Output = ()>> Future for ConnectionFuture<H> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.project() {
            ConnectionFutureProjection::Http { serving } => serving.poll(cx),
            ConnectionFutureProjection::Boxed { serving } => serving.as_mut().poll(cx),
        }
    }
}
