"""Reports of the pipeline over HTTP."""

from __future__ import annotations

from pathlib import Path

from tests.management.conftest import running_node
from tests.management.http import segment


def test_reports_are_listed_and_opened_with_a_ticket(tmp_path: Path) -> None:
    (tmp_path / "a b.html").write_text("<html><head><title>One &amp; only</title></head><script>1</script></html>")
    (tmp_path / "secret.txt").write_text("no")
    with running_node(reports=str(tmp_path)) as node:
        http = node.http
        (report,) = http.get("/api/reports")
        assert (report["name"], report["title"]) == ("a b.html", "One & only")
        path = http.post("/api/reports/a%20b.html/ticket", {}).body["path"].replace(" ", "%20")
        page = http.as_user(None).call("GET", path)
        assert page.status == 200
        assert "sandbox" in page.headers["content-security-policy"]
        assert http.as_user(None).call("GET", path.replace("/reports/", "/reports/9")).status == 401
        for name in ("secret.txt", "..%2Fsecret.html", "none.html"):
            assert http.post(f"/api/reports/{name}/ticket", {}).status == 404


def test_reports_with_odd_names_open(tmp_path: Path) -> None:
    names = ["a#1.html", "50%25.html", "ü.html"]
    for name in names:
        (tmp_path / name).write_text("<title>t</title>")
    (tmp_path / "gone.html").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder.html").mkdir()
    with running_node(reports=str(tmp_path)) as node:
        assert {report["name"] for report in node.http.get("/api/reports")} == set(names)
        for name in names:
            path = node.http.post(f"/api/reports/{segment(name)}/ticket", {}).body["path"]
            assert node.http.as_user(None).call("GET", path).status == 200
