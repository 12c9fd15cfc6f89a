"""Reports of the pipeline over HTTP."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.management.conftest import running_node
from tests.management.http import Http, segment


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
    os.mkfifo(tmp_path / "pipe.html")
    (tmp_path / "folder.html").mkdir()
    with running_node(reports=str(tmp_path)) as node:
        assert {report["name"] for report in node.http.get("/api/reports")} == set(names)
        for name in names:
            path = node.http.post(f"/api/reports/{segment(name)}/ticket", {}).body["path"]
            assert node.http.as_user(None).call("GET", path).status == 200


def test_a_report_is_for_those_who_can_see_its_vhost(tmp_path: Path) -> None:
    page = '<meta charset="utf-8"><meta name="holtmq-vhost" content="{}"><title>t</title>'
    for name, vhost in (("mine", "shop"), ("theirs", "/"), ("hard", "a&#34;&lt;b&gt;")):
        (tmp_path / f"{name}.html").write_text(page.format(vhost))
    (tmp_path / "nobodys.html").write_text("<title>no vhost</title>")
    with running_node(reports=str(tmp_path)) as node:
        for vhost in ("shop", 'a"<b>'):
            node.http.put(f"/api/vhosts/{segment(vhost)}")
            node.http.put("/api/users/clerk", {"password": "p", "tags": ["management"]})
            node.http.put(f"/api/permissions/{segment(vhost)}/clerk", {"configure": "", "write": "", "read": ""})
        node.http.put("/api/users/watcher", {"password": "p", "tags": ["monitoring"]})
        clerk = node.http.as_user("clerk:p")
        assert names(clerk) == {"mine.html", "hard.html"}
        assert (
            names(node.http)
            == names(node.http.as_user("watcher:p"))
            == {f"{n}.html" for n in ("mine", "theirs", "hard", "nobodys")}
        )
        assert clerk.post("/api/reports/mine.html/ticket", {}).status == 200
        for name in ("theirs.html", "nobodys.html"):
            assert clerk.post(f"/api/reports/{name}/ticket", {}).status == 404
        path = clerk.post("/api/reports/mine.html/ticket", {}).body["path"]
        assert clerk.as_user(None).call("GET", path).status == 200
        assert clerk.as_user(None).call("GET", path.replace("mine", "theirs")).status == 401
        (tmp_path / "mine.html").write_text(page.format("/"))
        assert clerk.as_user(None).call("GET", path).status == 401


def names(http: Http) -> set[str]:
    return {report["name"] for report in http.get("/api/reports")}


@pytest.mark.parametrize(
    "name", ["..%2Fsecret.html", "%2e%2e%2fsecret.html", "link.html", "%00.html", "sub%2Fa.html", "..", "dir.html", "x%00.html"]
)
def test_nothing_outside_the_folder_is_served(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "reports"
    (folder / "sub").mkdir(parents=True)
    (folder / "dir.html").mkdir()
    for path in (tmp_path / "secret.html", folder / "sub" / "a.html"):
        path.write_text("secret")
    (folder / "link.html").symlink_to(tmp_path / "secret.html")
    with running_node(reports=str(folder)) as node:
        assert node.http.get("/api/reports") == []
        assert node.http.post(f"/api/reports/{name}/ticket", {}).status == 404
        assert node.http.call("GET", f"/reports/99999999999-x/{name}").status in (401, 404)


def test_a_report_folder_that_is_missing_is_empty(tmp_path: Path) -> None:
    with running_node(reports=str(tmp_path / "none")) as node:
        assert node.http.get("/api/reports") == []
