//! Circles between the modules of a crate: there are none. Nor does a module import a name through the
//! crate's root, where a re-export would hide which module it depends on.
//!
//! The modules below one parent are the nodes of a graph. A module imports its sibling if anything
//! within it names anything within the sibling, through a re-export too. A module and its own
//! children are one unit: their references to each other do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, UseTree};

use crate::tree::{none, root};

/// The path of a module from its crate's root.
type Module = Vec<String>;

/// A path as it is written in a module.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Mention {
    segments: Vec<String>,
    /// The name that a `use` gives it.
    name: Option<String>,
}

/// The modules of a crate: file, and the paths that each names.
#[derive(Debug, Default)]
struct Crate {
    files: BTreeMap<Module, PathBuf>,
    mentions: BTreeMap<Module, BTreeSet<Mention>>,
}

impl Crate {
    fn read(file: &Path) -> Self {
        let mut all = Self::default();
        all.add(file, &[]);
        all
    }

    fn add(&mut self, file: &Path, module: &[String]) {
        let text = fs::read_to_string(file).expect("a module's file is text");
        let parsed = syn::parse_file(&text).expect("a module's file is Rust");
        let mut reader = Reader::default();
        reader.visit_file(&parsed);
        self.files.insert(module.to_vec(), file.to_owned());
        self.mentions.insert(module.to_vec(), reader.mentions);
        let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let folder = file.parent().unwrap_or(file);
        let folder = match stem {
            "lib" | "main" => folder.to_owned(),
            other => folder.join(other),
        };
        for child in reader.children {
            let below = folder.join(format!("{child}.rs"));
            if below.exists() {
                let module: Module = module.iter().cloned().chain([child]).collect();
                self.add(&below, &module);
            }
        }
    }

    /// The path from the root that a mention within `module` means, if it is of this crate.
    fn absolute(&self, module: &[String], segments: &[String]) -> Option<Module> {
        let (first, rest) = segments.split_first()?;
        let joined = |base: &[String]| base.iter().chain(rest).cloned().collect::<Module>();
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some(joined(module)),
            "super" => {
                let ups = segments.iter().take_while(|segment| *segment == "super").count();
                let base = &module[..module.len().checked_sub(ups)?];
                Some(base.iter().chain(&segments[ups..]).cloned().collect())
            }
            name => {
                let child: Module = module.iter().cloned().chain([name.to_owned()]).collect();
                self.files.contains_key(&child).then(|| [child, rest.to_vec()].concat())
            }
        }
    }

    /// The module that defines what this path names; re-exports are followed.
    fn definer(&self, path: &[String], depth: usize) -> Module {
        let mut module = Module::new();
        for (at, segment) in path.iter().enumerate() {
            let child: Module = module.iter().cloned().chain([segment.clone()]).collect();
            if self.files.contains_key(&child) {
                module = child;
                continue;
            }
            let named = |mention: &&Mention| mention.name.as_ref() == Some(segment);
            let used = self.mentions[&module].iter().find(named);
            let target = used.and_then(|used| self.absolute(&module, &used.segments));
            return match target {
                Some(target) if depth > 0 && target != path => {
                    self.definer(&[&target, &path[at + 1..]].concat(), depth - 1)
                }
                _ => module,
            };
        }
        module
    }

    /// The imports among siblings: by parent, the pairs of names with an example of each.
    fn imports(&self) -> BTreeMap<Module, BTreeMap<(String, String), String>> {
        let mut imports: BTreeMap<Module, BTreeMap<_, _>> = BTreeMap::new();
        for (from, mentions) in &self.mentions {
            for mention in mentions {
                let Some(path) = self.absolute(from, &mention.segments) else { continue };
                let to = self.definer(&path, 8);
                let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                if let (Some(a), Some(b)) = (from.get(common), to.get(common)) {
                    let example = format!("{} names {}", from.join("::"), to.join("::"));
                    let level = imports.entry(from[..common].to_vec()).or_default();
                    level.entry((a.clone(), b.clone())).or_insert(example);
                }
            }
        }
        imports
    }

    /// A sentence for each name of another module that a module imports through the root.
    fn through_root(&self) -> Vec<String> {
        let mut found = Vec::new();
        let of_root = &self.mentions[&Module::new()];
        for (from, mentions) in self.mentions.iter().filter(|(from, _)| !from.is_empty()) {
            for Mention { segments, .. } in mentions {
                let [first, name, ..] = &segments[..] else { continue };
                let is_module = self.files.contains_key(std::slice::from_ref(name));
                let named = |mention: &Mention| mention.name.as_ref() == Some(name);
                if first == "crate" && !is_module && of_root.iter().any(named) {
                    let file = &self.files[from];
                    let file = file.strip_prefix(root()).unwrap_or(file).display();
                    found.push(format!("{file} imports {name} through the root of its crate"));
                }
            }
        }
        found
    }

    /// A sentence for each circle.
    fn circles(&self) -> Vec<String> {
        let mut circles = Vec::new();
        for (parent, edges) in self.imports() {
            let reach = reachable(&edges);
            let on_a_circle = |name: &String| reach[name].contains(name);
            let mut open: BTreeSet<&String> =
                reach.keys().filter(|name| on_a_circle(name)).collect();
            while let Some(first) = open.pop_first() {
                let members: BTreeSet<&String> = std::iter::once(first)
                    .chain(open.iter().copied())
                    .filter(|other| reach[first].contains(*other) && reach[*other].contains(first))
                    .collect();
                open.retain(|name| !members.contains(name));
                let file = |name: &&String| {
                    let module: Module = parent.iter().cloned().chain([(**name).clone()]).collect();
                    let file = &self.files[&module];
                    file.strip_prefix(root()).unwrap_or(file).display().to_string()
                };
                let files: Vec<String> = members.iter().map(file).collect();
                let within =
                    |(from, to): &&(String, String)| members.contains(from) && members.contains(to);
                let why: Vec<&str> =
                    edges.keys().filter(within).map(|pair| edges[pair].as_str()).collect();
                circles.push(format!(
                    "{} import in a circle: {}",
                    files.join(", "),
                    why.join("; ")
                ));
            }
        }
        circles
    }
}

impl Crate {
    /// The number of modules below the root, and that of floors: a module stands one floor above the
    /// highest one that it imports.
    fn rooms_and_floors(&self) -> (usize, usize) {
        let rooms: BTreeSet<&String> =
            self.files.keys().filter(|module| module.len() == 1).map(|module| &module[0]).collect();
        let imports = self.imports();
        let edges: Vec<&(String, String)> =
            imports.get(&Module::new()).into_iter().flat_map(BTreeMap::keys).collect();
        let mut floors: BTreeMap<&String, usize> = rooms.iter().map(|room| (*room, 1)).collect();
        // Without a circle, the longest way has as many steps as there are rooms, at most.
        for _ in &rooms {
            for (above, below) in &edges {
                let needed = floors.get(below).copied().unwrap_or_default() + 1;
                floors.entry(above).and_modify(|floor| *floor = needed.max(*floor));
            }
        }
        (rooms.len(), floors.into_values().max().unwrap_or_default())
    }
}

/// All that each name reaches.
fn reachable(edges: &BTreeMap<(String, String), String>) -> BTreeMap<String, BTreeSet<String>> {
    let mut reach: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, to) in edges.keys() {
        reach.entry(from.clone()).or_default().insert(to.clone());
        reach.entry(to.clone()).or_default();
    }
    loop {
        let mut grown = false;
        for name in reach.keys().cloned().collect::<Vec<_>>() {
            let further: BTreeSet<String> =
                reach[&name].iter().flat_map(|next| reach[next].iter().cloned()).collect();
            let own = reach.get_mut(&name).expect("one of its keys");
            let before = own.len();
            own.extend(further);
            grown |= own.len() > before;
        }
        if !grown {
            return reach;
        }
    }
}

/// Gathers what a file names, tests aside.
#[derive(Debug, Default)]
struct Reader {
    mentions: BTreeSet<Mention>,
    children: Vec<String>,
}

impl Reader {
    fn used(&mut self, tree: &UseTree, before: &[String]) {
        let with = |name: &syn::Ident| {
            before.iter().cloned().chain([name.to_string()]).collect::<Vec<_>>()
        };
        match tree {
            UseTree::Path(path) => self.used(&path.tree, &with(&path.ident)),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.used(tree, before)),
            UseTree::Name(name) if name.ident == "self" => {
                let name = before.last().cloned();
                self.mentions.insert(Mention { segments: before.to_vec(), name });
            }
            UseTree::Name(name) => {
                let (segments, name) = (with(&name.ident), Some(name.ident.to_string()));
                self.mentions.insert(Mention { segments, name });
            }
            UseTree::Rename(rename) => {
                let (segments, name) = (with(&rename.ident), Some(rename.rename.to_string()));
                self.mentions.insert(Mention { segments, name });
            }
            UseTree::Glob(_) => {
                self.mentions.insert(Mention { segments: before.to_vec(), name: None });
            }
        }
    }

    /// The paths in a macro's tokens.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut segments: Vec<String> = Vec::new();
        let mut colons = 0;
        let mut ended = |segments: &mut Vec<String>| {
            if segments.len() > 1 {
                self.mentions.insert(Mention { segments: std::mem::take(segments), name: None });
            }
            segments.clear();
        };
        let mut groups = Vec::new();
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        ended(&mut segments);
                    }
                    segments.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => groups.push(group.stream()),
                _ => colons = 0,
            }
        }
        ended(&mut segments);
        groups.into_iter().for_each(|group| self.tokens(group));
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let tokens = attribute.meta.require_list().map(|list| list.tokens.to_string());
        attribute.path().is_ident("cfg") && tokens.is_ok_and(|tokens| tokens == "test")
    })
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes: &[Attribute] = match item {
            Item::Const(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Static(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Trait(item) => &item.attrs,
            Item::Type(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => &[],
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.content.is_none() {
            self.children.push(item.ident.to_string());
        }
        visit::visit_item_mod(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.used(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.mentions.insert(Mention { segments, name: None });
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}

/// The root files of all crates: libraries and binaries.
fn roots() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root().join("crates"), root().join("examples")];
    while let Some(folder) = open.pop() {
        for entry in folder.read_dir().expect("a folder that was just listed").flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let is_root = name == "lib.rs" || name == "main.rs";
            if path.is_dir() && name != "tests" && name != "target" {
                open.push(path);
            } else if is_root && !path.components().any(|part| part.as_os_str() == "peers") {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn no_modules_of_a_crate_import_in_a_circle() {
    let roots = roots();
    assert!(roots.len() > 15, "{} crates", roots.len());
    let crates: Vec<Crate> = roots.iter().map(|root| Crate::read(root)).collect();
    let imports: usize = crates.iter().flat_map(Crate::imports).map(|(_, all)| all.len()).sum();
    assert!(imports > 500, "{imports} imports");
    let circles: Vec<String> = crates.iter().flat_map(Crate::circles).collect();
    none(&circles);
}

#[test]
fn the_gateways_crates_have_few_rooms_and_floors() {
    for name in ["gateway", "gateway-access", "gateway-replies", "reply-text"] {
        let lib = root().join("crates").join(name).join("src/lib.rs");
        let (rooms, floors) = Crate::read(&lib).rooms_and_floors();
        assert!(rooms > 1 && rooms <= 14 && floors <= 10, "{name}: {rooms} rooms, {floors} floors");
    }
}

#[test]
fn modules_import_names_from_where_they_are_defined() {
    let all: Vec<String> =
        roots().iter().flat_map(|root| Crate::read(root).through_root()).collect();
    none(&all);
}

#[test]
fn an_import_through_the_root_is_found() {
    let lib = ("lib", "mod a; mod b; pub use b::{B, C as D}; pub struct Own;");
    for (a, found) in [
        ("use crate::B;", 1),
        ("fn f(b: crate::D) {}", 1),
        ("use crate::{B, b::C};", 1),
        ("use crate::b::B; use crate::Own; use super::b;", 0),
        ("#[cfg(test)] mod tests { use crate::B; }", 0),
    ] {
        let (_folder, read) = written(&[lib, ("a", a), ("b", "pub struct B; pub struct C;")]);
        assert_eq!(read.through_root().len(), found, "{a}");
    }
}

/// A crate of modules with these texts.
fn written(modules: &[(&str, &str)]) -> (tempfile::TempDir, Crate) {
    let folder = tempfile::tempdir().expect("a folder for the test");
    for (name, text) in modules {
        let file = folder.path().join(format!("{name}.rs"));
        fs::create_dir_all(file.parent().expect("a file in a folder")).expect("a folder");
        fs::write(file, text).expect("a file");
    }
    let read = Crate::read(&folder.path().join("lib.rs"));
    (folder, read)
}

#[test]
fn a_circle_is_found_however_it_is_written() {
    for (a, b) in [
        ("use crate::b::B;", "use crate::a::A;"),
        ("use super::b::{B, C as D};", "fn f() { crate::a::f(); }"),
        ("use crate::B;", "type T = super::a::A;"),
        ("fn f() { println!(\"{}\", crate::b::N); }", "use crate::{a, other};"),
        ("mod c;", "use crate::a::A;"),
    ] {
        let lib = ("lib", "mod a; mod b; pub use b::B;");
        let (_folder, read) = written(&[lib, ("a", a), ("b", b), ("a/c", "use crate::b::B;")]);
        let circles = read.circles();
        assert_eq!(circles.len(), 1, "{a} and {b}: {circles:?}");
        assert!(circles[0].contains("a.rs") && circles[0].contains("b.rs"), "{circles:?}");
    }
}

#[test]
fn a_module_stands_above_those_that_it_imports() {
    let modules = [
        ("lib", "mod a; mod b; mod c; mod d;"),
        ("a", "use crate::b::B; use crate::c::C;"),
        ("b", "use crate::c::C; pub struct B;"),
        ("c", "pub struct C;"),
        ("d", ""),
    ];
    assert_eq!(written(&modules).1.rooms_and_floors(), (4, 3));
}

#[test]
fn imports_that_go_one_way_or_are_for_tests_are_no_circle() {
    for (a, b) in [
        ("use crate::b::B;", "use std::fmt;"),
        ("use crate::b::B;", "#[cfg(test)] mod tests { use crate::a::A; }"),
        ("use crate::b::B;", "#[cfg(test)] use crate::a::A;"),
        ("mod c; pub struct A;", "use crate::a::A;"),
    ] {
        let c = ("a/c", "use super::A; use crate::a;");
        let (_folder, read) = written(&[("lib", "mod a; mod b;"), ("a", a), ("b", b), c]);
        assert_eq!(read.circles(), Vec::<String>::new(), "{a} and {b}");
    }
}
