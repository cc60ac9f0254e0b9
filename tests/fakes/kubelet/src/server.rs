//! The sockets, and a thread that serves them until it is stopped.

use crate::cri::{Images, Runtime};
use crate::model::{Allocation, Pod};
use crate::pod_resources::PodResourcesLister;
use crate::state::{Fault, State};
use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use tokio::net;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

/// A fake kubelet. Its sockets are there when it has been started; dropping it ends it and leaves
/// the socket files, as a killed kubelet does.
#[derive(Debug)]
pub struct Kubelet {
    folder: PathBuf,
    state: Arc<State>,
    running: Option<Running>,
}

/// What serves.
#[derive(Debug)]
enum Running {
    Serving {
        /// Dropped to stop it.
        stop: oneshot::Sender<()>,
        thread: JoinHandle<()>,
    },
    /// Sockets that nobody accepts connections of.
    Deaf { _sockets: Vec<UnixListener> },
}

impl Kubelet {
    /// One with its runtime, in a folder that stands for `/var/lib/kubelet`.
    pub fn start(folder: &Path) -> io::Result<Self> {
        let mut kubelet = Self { folder: folder.to_owned(), state: Arc::default(), running: None };
        kubelet.again()?;
        Ok(kubelet)
    }

    /// The socket of `v1.PodResourcesLister`.
    pub fn pod_resources(&self) -> PathBuf {
        self.folder.join("pod-resources/kubelet.sock")
    }

    /// The runtime's socket.
    pub fn cri(&self) -> PathBuf {
        self.folder.join("cri.sock")
    }

    /// Adds a pod, or changes the one of the same UID; who watches is told.
    pub fn set_pod(&self, pod: Pod) {
        self.state.set_pod(pod);
    }

    /// Forgets a pod; who watches is told. Gives what it was.
    pub fn remove_pod(&self, uid: &str) -> Option<Pod> {
        self.state.remove_pod(uid)
    }

    /// Starts again while its API server is away, or for the first second after any start: the kubelet
    /// lists no pods until [`Self::reach_api_server`], while their containers run on (1.34 and 1.36 do).
    pub fn start_without_api_server(&mut self) -> io::Result<()> {
        self.stop();
        self.state.set_apart(true);
        self.again()
    }

    /// Knows its pods again.
    pub fn reach_api_server(&self) {
        self.state.set_apart(false);
    }

    /// What the node has to grant, which its device plugins have registered: a kubelet that has been
    /// started again has nothing to grant until they do so again.
    pub fn set_allocatable(&self, allocatable: Allocation) {
        self.state.set_allocatable(allocatable);
    }

    /// What goes wrong with every call of pod-resources from now on; `None` for nothing.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.state.set_fault(fault);
    }

    /// How many calls of pod-resources have come so far, refused ones too.
    pub fn calls(&self) -> u64 {
        self.state.calls()
    }

    /// How many lists of allocations it has given so far.
    pub fn lists(&self) -> usize {
        self.state.lists()
    }

    /// Ends all connections and accepts none; the socket files stay, and refuse.
    pub fn stop(&mut self) {
        if let Some(Running::Serving { stop, thread }) = self.running.take() {
            drop(stop);
            // A panic of the thread has been printed, and it serves no more either way.
            let _ended = thread.join();
        }
    }

    /// Ends all connections; the sockets let anybody connect, and nobody answers, as with a
    /// process that was stopped.
    pub fn go_deaf(&mut self) -> io::Result<()> {
        self.stop();
        self.running = Some(Running::Deaf { _sockets: self.bind()? });
        Ok(())
    }

    /// Removes the socket files of a stopped one, as the end of its pod or a reboot would.
    pub fn remove_sockets(&self) -> io::Result<()> {
        self.paths().iter().try_for_each(|path| remove_if_there(path))
    }

    /// Serves again, on new sockets of the same names, with the pods that it knew.
    pub fn again(&mut self) -> io::Result<()> {
        self.stop();
        self.state.set_allocatable(Allocation::default());
        let sockets = self.bind()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let state = Arc::clone(&self.state);
        let serve = move || {
            runtime.block_on(async {
                let mut sockets = sockets.into_iter().filter_map(|socket| listen(socket).ok());
                let resources = sockets.next().map(|socket| {
                    let service = PodResourcesLister(Arc::clone(&state));
                    Server::builder().add_service(service).serve_with_incoming(socket)
                });
                let runtime = sockets.next().map(|socket| {
                    let services = Server::builder().add_service(Runtime(Arc::clone(&state)));
                    services.add_service(Images(state)).serve_with_incoming(socket)
                });
                tokio::spawn(async { resources?.await.ok() });
                tokio::spawn(async { runtime?.await.ok() });
                // It ends when the sender is dropped, which is an error to the channel.
                let _stopped = stopped.await;
            });
            // What has not ended is dropped with the runtime, connections and all.
        };
        let thread = thread::Builder::new().name("fake-kubelet".to_owned()).spawn(serve)?;
        self.running = Some(Running::Serving { stop, thread });
        Ok(())
    }

    fn paths(&self) -> [PathBuf; 2] {
        [self.pod_resources(), self.cri()]
    }

    /// Makes the sockets anew: whoever has an old one connected keeps nothing of it.
    fn bind(&self) -> io::Result<Vec<UnixListener>> {
        let bind = |path: PathBuf| {
            fs::create_dir_all(path.parent().unwrap_or(&self.folder))?;
            remove_if_there(&path)?;
            UnixListener::bind(path)
        };
        self.paths().into_iter().map(bind).collect()
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.stop();
    }
}

fn listen(socket: UnixListener) -> io::Result<UnixListenerStream> {
    socket.set_nonblocking(true)?;
    Ok(UnixListenerStream::new(net::UnixListener::from_std(socket)?))
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
