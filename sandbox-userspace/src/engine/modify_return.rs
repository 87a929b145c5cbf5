//! The second way of attaching, for kernels on which `bpf` is not an active LSM.
//!
//! There the kernel never calls a BPF-LSM program, attached or not. But it lets programs of the kind
//! `fmod_ret` change the return value of any function whose name begins with `security_`
//! (`check_attach_modify_return`, kernel/bpf/verifier.c), and those are what calls the LSMs. The
//! arguments and the trailing return value are laid out alike, so the same programs serve. aya has no
//! loader for this kind: the object is relocated once more, against the maps that aya made.

use super::EngineError;
use crate::kernel::bpf::{self, ModifyReturn};
use aya::maps::{Map, MapData};
use aya::{Btf, BtfError, Ebpf};
use aya_obj::Object;
use aya_obj::btf::BtfKind;
use sandbox_common::event::Hook;
use std::collections::HashSet;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

/// The programs, ready to be loaded.
pub(super) struct Image {
    object: Object,
    btf: OwnedFd,
    /// The instructions name these by their descriptors.
    _maps: Vec<MapData>,
}

impl Image {
    /// Relocates `bytes` against the maps pinned beneath `maps`, and the read-only data of `ebpf`,
    /// which must outlive the image.
    pub(super) fn new(bytes: &[u8], ebpf: &Ebpf, maps: &Path) -> Result<Self, EngineError> {
        let mut object = Object::parse(bytes).map_err(invalid)?;
        let features = aya::features();
        object.sanitize_functions(features);
        let btf = features.btf().ok_or(EngineError::NoProgramTypes)?;
        let btf = object.fixup_and_sanitize_btf(btf).map_err(invalid)?;
        let btf = btf.ok_or(EngineError::NoProgramTypes)?.to_bytes();
        let btf = bpf::load_btf(&btf).map_err(EngineError::ProgramTypes)?;
        let (mut maps_opened, mut known) = (Vec::new(), Vec::new());
        for (name, map) in &object.maps {
            let fd =
                if let Some(Map::Array(data)) = ebpf.map(name).filter(|_| name.starts_with('.')) {
                    data.fd().as_fd().as_raw_fd()
                } else {
                    let data = MapData::from_pin(maps.join(name))
                        .map_err(|source| EngineError::PinnedMap { name: name.clone(), source })?;
                    let fd = data.fd().as_fd().as_raw_fd();
                    maps_opened.push(data);
                    fd
                };
            known.push((name.clone(), fd, map.clone()));
        }
        let text: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
        let named = known.iter().map(|(name, fd, map)| (name.as_str(), *fd, map));
        object.relocate_maps(named, &text).map_err(invalid)?;
        object.relocate_calls(&text).map_err(invalid)?;
        Ok(Self { object, btf, _maps: maps_opened })
    }

    /// Attaches a program to the function of the hook `name` and pins its link; false where the kernel has no such function.
    pub(super) fn attach(
        &self,
        name: &'static str,
        function: &str,
        program: &'static str,
        btf: &Btf,
        links: &Path,
    ) -> Result<bool, EngineError> {
        let function = match btf.id_by_type_name_kind(function, BtfKind::Func) {
            Ok(id) => id,
            Err(BtfError::UnknownBtfTypeName { .. }) => return Ok(false),
            Err(error) => return Err(EngineError::Btf(error)),
        };
        let program = self.object.programs.get(program).ok_or(EngineError::NoProgram(program))?;
        let code = self.object.functions.get(&program.function_key());
        let code = code.ok_or(EngineError::NoProgram(name))?;
        let func_info = code.func_info.func_info_bytes();
        let loaded = bpf::load_modify_return(&ModifyReturn {
            instructions: &code.instructions,
            license: &program.license,
            btf: self.btf.as_fd(),
            func_info: (&func_info, code.func_info_rec_size),
            function,
        })
        .map_err(|source| EngineError::LoadModifyReturn { name, source })?;
        let attach = |source| EngineError::AttachModifyReturn { name, source };
        let link = bpf::link(loaded.as_fd()).map_err(attach)?;
        bpf::pin(link.as_fd(), &links.join(name)).map_err(attach)?;
        Ok(true)
    }
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> EngineError {
    EngineError::Image(Box::new(error))
}

/// The function that the kernel asks at a hook: `security_<hook>`, with two exceptions.
pub(crate) fn function(hook: Hook) -> String {
    match hook {
        Hook::UsernsCreate => "security_create_user_ns".into(),
        Hook::BprmCheckSecurity => "security_bprm_check".into(),
        Hook::Settime => "security_settime64".into(),
        _ => format!("security_{}", hook.name()),
    }
}
