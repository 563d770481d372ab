//! A headless Chromium, driven through its pipe.
//!
//! The messages are those of the Chrome `DevTools` Protocol: JSON, each with a zero byte behind it. Chromium
//! reads from the file descriptor 3 and writes to 4; a shell opens two named pipes as these.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Where Debian's package `chromium`, and others, have the program.
const PROGRAMS: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];

/// Turns a missing browser into a failure.
const REQUIRED: &str = "ZARRS_CUDA_TEST_BROWSER";

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    input: File,
    output: BufReader<File>,
    next: u64,
    session: String,
    /// Errors of the console, and exceptions.
    pub(crate) errors: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    /// Starts a browser whose window has this size. Where there is none, it says so aloud, and returns
    /// `None`; or it fails, if [`REQUIRED`] is set.
    pub(crate) fn start(width: u32, height: u32) -> Option<Self> {
        let is_there = |program: &&str| {
            let mut version = Command::new(program);
            version.arg("--version").stderr(Stdio::null());
            version.output().is_ok_and(|output| output.status.success())
        };
        let Some(program) = PROGRAMS.into_iter().find(|program| is_there(program)) else {
            let message = "NO BROWSER, SO A PAGE IS NOT TESTED: install Chromium (Debian: apt-get install chromium)";
            assert!(std::env::var_os(REQUIRED).is_none(), "{message}");
            // Past the harness, which keeps what tests print.
            let _ = writeln!(std::io::stderr(), "\n{message}");
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        let [to, from] = ["to", "from"].map(|name| profile.path().join(name));
        let made = Command::new("mkfifo").args([&to, &from]).status();
        assert!(made.unwrap().success());
        let script = format!(
            "exec {program} --headless --no-sandbox --disable-gpu --hide-scrollbars \
             --no-first-run --disable-extensions --remote-debugging-pipe \
             --window-size={width},{height} --user-data-dir=\"$1\" about:blank 3<\"$2\" 4>\"$3\""
        );
        let child = Command::new("sh")
            .args(["-c", &script, "sh"])
            .args([profile.path(), &to, &from])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // In the order in which the shell opens them.
        let input = OpenOptions::new().write(true).open(&to).unwrap();
        let output = BufReader::new(File::open(&from).unwrap());
        let mut browser = Self {
            child,
            input,
            output,
            next: 0,
            session: String::new(),
            errors: Vec::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", attach);
        let session = session["sessionId"].as_str().unwrap();
        session.clone_into(&mut browser.session);
        for domain in [
            "Page.enable",
            "Runtime.enable",
            "Log.enable",
            "Network.enable",
        ] {
            browser.call(domain, json!({}));
        }
        let metrics = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
        });
        browser.call("Emulation.setDeviceMetricsOverride", metrics);
        Some(browser)
    }

    fn message(&mut self) -> Value {
        let mut message = Vec::new();
        self.output.read_until(0, &mut message).unwrap();
        assert_eq!(message.pop(), Some(0), "the browser went away");
        serde_json::from_slice(&message).unwrap()
    }

    /// Notes what the browser tells without being asked.
    fn note(&mut self, message: &Value) {
        let parameters = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => {
                self.errors.push(parameters["exceptionDetails"].to_string());
            }
            Some("Runtime.consoleAPICalled") if parameters["type"] == "error" => {
                self.errors.push(parameters["args"].to_string());
            }
            Some("Log.entryAdded") if parameters["entry"]["level"] == "error" => {
                self.errors.push(parameters["entry"].to_string());
            }
            Some("Network.requestWillBeSent") => {
                let url = parameters["request"]["url"].as_str().unwrap_or_default();
                if !url.starts_with("file:") && !url.starts_with("data:") {
                    self.errors.push(format!("it asked for {url}"));
                }
            }
            _ => {}
        }
    }

    #[allow(
        clippy::needless_pass_by_value,
        reason = "callers make it for the call"
    )]
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.input.write_all(&bytes).unwrap();
        loop {
            let answer = self.message();
            if answer["id"] == json!(id) {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.note(&answer);
        }
    }

    /// Opens a file, and waits until it is loaded and painted.
    pub(crate) fn open(&mut self, page: &Path) {
        let url = format!("file://{}", page.canonicalize().unwrap().display());
        self.call("Page.navigate", json!({ "url": url }));
        loop {
            let message = self.message();
            self.note(&message);
            if message["method"] == "Page.loadEventFired" {
                break;
            }
        }
        self.settle();
    }

    /// Waits until what was asked for is painted.
    pub(crate) fn settle(&mut self) {
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0))))");
    }

    /// The value of an expression, or of what it promises.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({
            "expression": expression, "awaitPromise": true, "returnByValue": true,
        });
        let result = self.call("Runtime.evaluate", parameters);
        assert!(
            result["exceptionDetails"].is_null(),
            "{expression}: {result}"
        );
        result["result"]["value"].clone()
    }

    fn mouse(&mut self, kind: &str, [x, y]: [f64; 2], button: &str) {
        let parameters = json!({
            "type": kind, "x": x, "y": y, "button": button, "clickCount": i32::from(button == "left"),
        });
        self.call("Input.dispatchMouseEvent", parameters);
    }

    pub(crate) fn hover(&mut self, at: [f64; 2]) {
        self.mouse("mouseMoved", at, "none");
        self.settle();
    }

    /// Clicks as a person does: moves, presses, releases.
    pub(crate) fn click(&mut self, at: [f64; 2]) {
        self.mouse("mouseMoved", at, "none");
        self.mouse("mousePressed", at, "left");
        self.mouse("mouseReleased", at, "left");
        self.settle();
    }

    pub(crate) fn wheel(&mut self, [x, y]: [f64; 2], delta: f64) {
        let parameters =
            json!({ "type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": delta });
        self.call("Input.dispatchMouseEvent", parameters);
        self.settle();
    }

    pub(crate) fn colour_scheme(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call(
            "Emulation.setEmulatedMedia",
            json!({ "features": features }),
        );
        self.settle();
    }

    /// Saves what is seen, if `ZARRS_CUDA_TEST_SCREENSHOTS` names a directory.
    pub(crate) fn screenshot(&mut self, name: &str) {
        let Some(directory) = std::env::var_os("ZARRS_CUDA_TEST_SCREENSHOTS") else {
            return;
        };
        let shot = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let path = Path::new(&directory).join(format!("{name}.png"));
        let encoded = shot["data"].as_str().unwrap();
        std::fs::write(path, decoded(encoded)).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Base64, naively.
fn decoded(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut place = [0_u32; 256];
    for (value, &digit) in (0..).zip(DIGITS) {
        place[usize::from(digit)] = value;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in text.as_bytes().chunks(4) {
        let bits = group
            .iter()
            .fold(0, |bits, &digit| bits << 6 | place[usize::from(digit)]);
        let padding = group.len() - group.iter().take_while(|&&digit| digit != b'=').count();
        bytes.extend_from_slice(&bits.to_be_bytes()[1..4 - padding]);
    }
    bytes
}
