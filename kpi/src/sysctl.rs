//! A tree of what an admin sees and changes (sysctl(9)), made at run time.
//!
//! What a leaf shows is asked for when somebody reads it. Handlers run in the thread of the reader,
//! which may sleep, and are gone when the tree is: dropping it waits for those that run.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::{CStr, c_int, c_void};
use core::fmt::{self, Write};
use core::ptr::NonNull;

use sys_bindings as sys;
use sys_bindings::{kpi_sysctl_kind as kind, kpi_sysctl_root as root};

use crate::context::MaySleep;
use crate::errno::Errno;
use crate::owned::{try_box, try_push};

/// Where a tree hangs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Root {
    /// hw
    Hw,
    /// net.link
    NetLink,
}

/// What a tree grows from.
#[derive(Debug)]
enum Ground {
    Root(Root),
    /// The top of another tree, which stays as long as this.
    Tree(Arc<Tree>),
}

/// A branch of a tree.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Node(usize);

/// A tree. When it goes, so does all that hangs on it.
///
/// # Invariants
///
/// `context` is initialised and holds all objects of the tree; `nodes` are among them. The
/// arguments of the leaves among them point to `leaves`.
pub struct Tree {
    context: NonNull<sys::sysctl_ctx_list>,
    nodes: Vec<NonNull<sys::sysctl_oid>>,
    leaves: Vec<NonNull<Leaf>>,
    /// Dropped last.
    ground: Ground,
}

// SAFETY: sysctl(9) has its own lock, and the closures are `Send`.
unsafe impl Send for Tree {}
// SAFETY: nothing is reached through a shared reference.
unsafe impl Sync for Tree {}

/// What a leaf does.
enum Leaf {
    Number { show: Box<ShowNumber>, change: Option<Box<ChangeNumber>> },
    Text { show: Box<ShowText>, change: Option<Box<ChangeText>> },
}

type ShowNumber = dyn Fn(&mut MaySleep) -> u64 + Send + Sync;
type ChangeNumber = dyn Fn(u64, &mut MaySleep) -> Result<(), Errno> + Send + Sync;
type ShowText = dyn Fn(&mut Output, &mut MaySleep) -> fmt::Result + Send + Sync;
type ChangeText = dyn Fn(&str, &mut MaySleep) -> Result<(), Errno> + Send + Sync;

/// Name and description of a branch or leaf.
#[derive(Clone, Copy, Debug)]
pub struct Label<'a> {
    /// One part of the name.
    pub name: &'a CStr,
    /// What `sysctl -d` says.
    pub description: &'a CStr,
}

impl Tree {
    /// A tree with one branch, [`Tree::TOP`].
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn new(place: Root, top: Label<'_>, may_sleep: &mut MaySleep) -> Result<Self, Errno> {
        Self::grow(Ground::Root(place), top, may_sleep)
    }

    /// A tree that hangs on the top of another.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn below(
        parent: &Arc<Self>,
        top: Label<'_>,
        may_sleep: &mut MaySleep,
    ) -> Result<Self, Errno> {
        Self::grow(Ground::Tree(Arc::clone(parent)), top, may_sleep)
    }

    fn grow(ground: Ground, top: Label<'_>, _may_sleep: &mut MaySleep) -> Result<Self, Errno> {
        // SAFETY: it takes no lock but that of the allocator.
        let context = unsafe { sys::rust_helper_sysctl_ctx_create() };
        let context = NonNull::new(context).ok_or(Errno::ENOMEM)?;
        // INVARIANT: created just now, and empty.
        let mut tree = Self { context, nodes: Vec::new(), leaves: Vec::new(), ground };
        let context = context.as_ptr();
        let (name, description) = (top.name.as_ptr(), top.description.as_ptr());
        // SAFETY: may sleep, as the argument proves; the context is initialised, and both texts are
        // copied. The other tree exists as long as this one does.
        let node = unsafe {
            match &tree.ground {
                Ground::Root(Root::Hw) => sys::rust_helper_sysctl_add_root(
                    context,
                    root::KPI_SYSCTL_HW,
                    name,
                    description,
                ),
                Ground::Root(Root::NetLink) => {
                    let place = root::KPI_SYSCTL_NET_LINK;
                    sys::rust_helper_sysctl_add_root(context, place, name, description)
                }
                Ground::Tree(parent) => {
                    let parent = parent.node(Self::TOP)?;
                    sys::rust_helper_sysctl_add_node(context, parent, name, description)
                }
            }
        };
        // INVARIANT: it is in the context.
        try_push(&mut tree.nodes, NonNull::new(node).ok_or(Errno::EEXIST)?)?;
        Ok(tree)
    }

    /// The branch that a tree has from the beginning.
    pub const TOP: Node = Node(0);

    /// Adds a branch.
    ///
    /// # Errors
    ///
    /// No memory, or the name is taken.
    pub fn add_node(
        &mut self,
        parent: Node,
        label: Label<'_>,
        _may_sleep: &mut MaySleep,
    ) -> Result<Node, Errno> {
        let parent = self.node(parent)?;
        let (name, description) = (label.name.as_ptr(), label.description.as_ptr());
        // SAFETY: may sleep, as the argument proves; context and parent exist by the invariant, and
        // both texts are copied.
        let node = unsafe {
            sys::rust_helper_sysctl_add_node(self.context.as_ptr(), parent, name, description)
        };
        // INVARIANT: it is in the context.
        try_push(&mut self.nodes, NonNull::new(node).ok_or(Errno::EEXIST)?)?;
        Ok(Node(self.nodes.len() - 1))
    }

    /// Adds a number that can be read.
    ///
    /// # Errors
    ///
    /// No memory, or the name is taken.
    pub fn add_number(
        &mut self,
        parent: Node,
        label: Label<'_>,
        show: impl Fn(&mut MaySleep) -> u64 + Send + Sync + 'static,
        may_sleep: &mut MaySleep,
    ) -> Result<(), Errno> {
        let leaf = Leaf::Number { show: try_box(show)?, change: None };
        self.add_leaf(parent, label, leaf, may_sleep)
    }

    /// Adds a number that can be read and written.
    ///
    /// # Errors
    ///
    /// No memory, or the name is taken.
    pub fn add_changeable_number(
        &mut self,
        parent: Node,
        label: Label<'_>,
        show: impl Fn(&mut MaySleep) -> u64 + Send + Sync + 'static,
        change: impl Fn(u64, &mut MaySleep) -> Result<(), Errno> + Send + Sync + 'static,
        may_sleep: &mut MaySleep,
    ) -> Result<(), Errno> {
        let leaf = Leaf::Number { show: try_box(show)?, change: Some(try_box(change)?) };
        self.add_leaf(parent, label, leaf, may_sleep)
    }

    /// Adds a text that can be read. It may be long, and may be written with a mutex held.
    ///
    /// # Errors
    ///
    /// No memory, or the name is taken.
    pub fn add_text(
        &mut self,
        parent: Node,
        label: Label<'_>,
        show: impl Fn(&mut Output, &mut MaySleep) -> fmt::Result + Send + Sync + 'static,
        may_sleep: &mut MaySleep,
    ) -> Result<(), Errno> {
        let leaf = Leaf::Text { show: try_box(show)?, change: None };
        self.add_leaf(parent, label, leaf, may_sleep)
    }

    /// Adds a text that can be read and written.
    ///
    /// # Errors
    ///
    /// No memory, or the name is taken.
    pub fn add_changeable_text(
        &mut self,
        parent: Node,
        label: Label<'_>,
        show: impl Fn(&mut Output, &mut MaySleep) -> fmt::Result + Send + Sync + 'static,
        change: impl Fn(&str, &mut MaySleep) -> Result<(), Errno> + Send + Sync + 'static,
        may_sleep: &mut MaySleep,
    ) -> Result<(), Errno> {
        let leaf = Leaf::Text { show: try_box(show)?, change: Some(try_box(change)?) };
        self.add_leaf(parent, label, leaf, may_sleep)
    }

    fn add_leaf(
        &mut self,
        parent: Node,
        label: Label<'_>,
        leaf: Leaf,
        _may_sleep: &mut MaySleep,
    ) -> Result<(), Errno> {
        let parent = self.node(parent)?;
        let (kind, is_writable) = match &leaf {
            Leaf::Number { change, .. } => (kind::KPI_SYSCTL_NUMBER, change.is_some()),
            Leaf::Text { change, .. } => (kind::KPI_SYSCTL_TEXT, change.is_some()),
        };
        let leaf = NonNull::from(Box::leak(try_box(leaf)?));
        try_push(&mut self.leaves, leaf).inspect_err(|_| {
            // SAFETY: it came from the box above, and nobody has it yet.
            drop(unsafe { Box::from_raw(leaf.as_ptr()) });
        })?;
        let (name, description) = (label.name.as_ptr(), label.description.as_ptr());
        // SAFETY: may sleep, as the argument proves; context and parent exist by the invariant, and
        // both texts are copied. `handle` is called with `leaf` until the context is freed, and the
        // leaf stays until then.
        let object = unsafe {
            sys::rust_helper_sysctl_add_leaf(
                self.context.as_ptr(),
                parent,
                name,
                description,
                kind,
                is_writable.into(),
                Some(handle),
                leaf.as_ptr().cast(),
            )
        };
        if object.is_null() { Err(Errno::EEXIST) } else { Ok(()) }
    }

    fn node(&self, node: Node) -> Result<*mut sys::sysctl_oid, Errno> {
        self.nodes.get(node.0).map(|node| node.as_ptr()).ok_or(Errno::EINVAL)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // SAFETY: initialised, by the invariant. Those who own a tree drop it where they may sleep,
        // and hold nothing that a handler waits for.
        unsafe { sys::rust_helper_sysctl_ctx_free(self.context.as_ptr()) };
        for leaf in self.leaves.drain(..) {
            // SAFETY: leaked by `add_leaf`, and no handler runs any more.
            drop(unsafe { Box::from_raw(leaf.as_ptr()) });
        }
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree").field("leaves", &self.leaves.len()).finish_non_exhaustive()
    }
}

/// Where a text is written to: the memory of the reader, which is wired.
#[derive(Debug)]
pub struct Output {
    sbuf: NonNull<sys::sbuf>,
}

impl Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: the buffer exists until `show_text` ends it. What it has no room for goes to
        // wired memory, which takes no lock and does not sleep.
        let error = unsafe {
            sys::rust_helper_sysctl_text_append(
                self.sbuf.as_ptr(),
                text.as_ptr().cast(),
                text.len(),
            )
        };
        if error == 0 { Ok(()) } else { Err(fmt::Error) }
    }
}

/// What a text that is written may have.
const TEXT_BYTES: usize = 64;

/// What the kernel calls when somebody reads or writes a leaf.
///
/// # Safety
///
/// `leaf` is what [`Tree::add_leaf`] gave, and the tree has not gone; `request` is that of a thread
/// that may sleep.
unsafe extern "C" fn handle(
    _object: *mut sys::sysctl_oid,
    leaf: *mut c_void,
    _number: sys::intmax_t,
    request: *mut sys::sysctl_req,
) -> c_int {
    // SAFETY: see above.
    let leaf = unsafe { &*leaf.cast::<Leaf>() };
    // SAFETY: sysctl(9) calls handlers that are marked as safe without Giant with no mutex held,
    // and in no epoch.
    let may_sleep = &mut unsafe { MaySleep::assume() };
    // SAFETY: the request is good for the call.
    let is_change = unsafe { sys::rust_helper_sysctl_is_change(request) };
    Errno::code(match leaf {
        Leaf::Number { show, change } => {
            let shown = show_number(request, show(may_sleep));
            match change {
                Some(change) if is_change => shown
                    .and_then(|()| read_number(request))
                    .and_then(|number| change(number, may_sleep)),
                Some(_) | None => shown,
            }
        }
        Leaf::Text { show, change } => {
            let shown = show_text(request, show, may_sleep);
            match change {
                Some(change) if is_change => {
                    shown.and_then(|()| read_text(request, change, may_sleep))
                }
                Some(_) | None => shown,
            }
        }
    })
}

fn show_number(request: *mut sys::sysctl_req, number: u64) -> Result<(), Errno> {
    // SAFETY: `handle` has the request for the call, in a thread that may sleep.
    Errno::result(unsafe { sys::rust_helper_sysctl_show_number(request, number) })
}

fn read_number(request: *mut sys::sysctl_req) -> Result<u64, Errno> {
    let mut number = 0;
    // SAFETY: as for `show_number`.
    let error = unsafe { sys::rust_helper_sysctl_read_number(request, &raw mut number) };
    Errno::result(error).map(|()| number)
}

fn show_text(
    request: *mut sys::sysctl_req,
    show: &ShowText,
    may_sleep: &mut MaySleep,
) -> Result<(), Errno> {
    // SAFETY: as for `show_number`.
    let sbuf = unsafe { sys::rust_helper_sysctl_text_begin(request) };
    let mut output = Output { sbuf: NonNull::new(sbuf).ok_or(Errno::ENOMEM)? };
    // What goes wrong in the buffer, it remembers.
    let _ = show(&mut output, may_sleep);
    // SAFETY: begun above, and ended once.
    Errno::result(unsafe { sys::rust_helper_sysctl_text_end(output.sbuf.as_ptr()) })
}

fn read_text(
    request: *mut sys::sysctl_req,
    change: &ChangeText,
    may_sleep: &mut MaySleep,
) -> Result<(), Errno> {
    let mut buffer = [0; TEXT_BYTES];
    // SAFETY: as for `show_number`; the buffer has that size.
    let error = unsafe {
        sys::rust_helper_sysctl_read_text(request, buffer.as_mut_ptr().cast(), TEXT_BYTES)
    };
    Errno::result(error)?;
    let text = CStr::from_bytes_until_nul(&buffer).map_err(|_| Errno::EINVAL)?;
    let text = text.to_str().map_err(|_| Errno::EINVAL)?;
    change(text.trim(), may_sleep)
}
