import java.sql.DriverManager;
import javax.sql.DataSource;
import org.springframework.jdbc.datasource.SingleConnectionDataSource;

/** The database at a URL of leasehold: one connection, since a peer does one thing at a time. */
final class Sources {
    private Sources() {}

    static DataSource of(String url) throws Exception {
        String[] parts = url.replaceAll("\\?.*", "").split("://|@|/");
        String[] user = parts[1].split(":");
        String kind = parts[0].equals("postgresql") ? "postgresql" : "mariadb";
        String jdbc = "jdbc:" + kind + "://" + parts[2] + "/" + parts[3];
        SingleConnectionDataSource source = new SingleConnectionDataSource(
                DriverManager.getConnection(jdbc, user[0], user.length > 1 ? user[1] : ""), true);
        source.setAutoCommit(true);
        return source;
    }
}
