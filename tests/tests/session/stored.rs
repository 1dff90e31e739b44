//! Conversations as files.

use super::*;

#[test]
fn a_conversation_goes_on_from_a_file_as_if_it_had_never_ended() {
    let folder = bundle().with_file_name("stored");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("session");
    let (mut chat, _device) = load(1024);
    let mut session = Session::with_system("Say something.");
    chat.send(&mut session, [shows("Look", 3, "what is it?")], &ask(4), &mut go).unwrap();
    chat.send(&mut session, [asks("And more?")], &ask(4), &mut go).unwrap();
    chat.save(&session, &path).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let wanted = chat.send(&mut session, [asks("And now?")], &ask(5), &mut go).unwrap();

    // Another process, so to say.
    let (mut other, _device) = load(1024);
    let mut restored = other.restore(&path).unwrap();
    assert_eq!(restored.unread, None);
    assert_eq!(restored.session.said(), &session.said()[..5]);
    let mut pictures = 0;
    let got = other
        .send(&mut restored.session, [asks("And now?")], &ask(5), &mut |event| {
            pictures += usize::from(matches!(event, Event::Image { .. }));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!((&got.tokens, &got.text), (&wanted.tokens, &wanted.text));
    assert!(got.reused_tokens > 0 && pictures == 0, "the picture was read already");
    // All of it taken back: the picture has to be looked at after all.
    restored.session.edit(2, asks("Something else"));
    restored.session.truncate(1);
    chat.send(&mut restored.session, [shows("Look", 3, "what is it?")], &ask(4), &mut go).unwrap();

    // A cut or changed file is refused, and never read as something else.
    let whole = std::fs::read(&path).unwrap();
    for (cut, wanted) in [(0, "cut off"), (10, "cut off"), (60, "cut off")] {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let error = other.restore(&path).unwrap_err().to_string();
        assert!(error.contains(wanted) && error.contains("stored/session"), "{error}");
    }
    for (at, wanted) in [(0, "no saved conversation"), (8, "version"), (40, "checksum")] {
        let mut bad = whole.clone();
        bad[at] ^= 1;
        std::fs::write(&path, &bad).unwrap();
        let error = other.restore(&path).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
    // A head is read into memory, so there is an end to it.
    let mut large = whole[..20].to_vec();
    large[12..20].copy_from_slice(&(128_u64 << 20).to_le_bytes());
    std::fs::write(&path, &large).unwrap();
    let error = other.restore(&path).unwrap_err().to_string();
    assert!(error.contains("its head has 134217728 bytes"), "{error}");
    // What the model had is damaged: the conversation is there, and is read anew.
    let mut bad = whole.clone();
    let last = bad.len() - 40;
    bad[last] ^= 1;
    std::fs::write(&path, &bad).unwrap();
    let mut restored = other.restore(&path).unwrap();
    assert!(restored.unread.is_some());
    let got = other.send(&mut restored.session, [asks("And now?")], &ask(5), &mut go).unwrap();
    assert_eq!((got.reused_tokens, &got.tokens), (0, &wanted.tokens));
    let _ = std::fs::remove_dir_all(folder);
}
